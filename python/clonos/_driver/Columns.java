package io.clonos;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionDef;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionRef;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.BaseEvalPython;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.Product;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What columns are made of, as text that is the same in each query over one frame, and in each process: Spark numbers
 * columns anew each time, and two of them may have one name.
 *
 * <p>A column that a node of the plan brings in goes by that node, one that is computed by what it is computed of.
 */
public class Columns {
    private static final String MARK = "clonos-use ";

    /** Expressions that are literals once a plan is optimized, others each time. */
    private static final Set TIMES = new HashSet(Arrays.asList(new String[] {
        "CurrentTimestamp", "CurrentDate", "CurrentTime", "Now", "LocalTimestamp"
    }));

    /** Nodes that bring columns in, by the numbers of these; of one that is said to be two, none. */
    private final Map sources = new HashMap();
    /** Expressions by the numbers of the columns that they compute. */
    private final Map definitions = new HashMap();
    /** What was said of computed columns, by their numbers. */
    private final Map said = new HashMap();
    /** Common tables, by their numbers. */
    protected final Map commons = new HashMap();
    /** Those that were looked at below the function that is looked at. */
    private final Set entered = new HashSet();
    private boolean areAllPlaced = true;
    private boolean isUnsteady;
    private boolean asksTime;

    /** What a plan says that stands below a function, from the leaves up. */
    public void addBelow(List plans) {
        Map found = new HashMap();
        Map counts = new HashMap();
        entered.clear();
        for (Iterator each = plans.iterator(); each.hasNext();) {
            addSources((LogicalPlan) each.next(), found, counts);
        }
        for (Iterator each = found.entrySet().iterator(); each.hasNext();) {
            Map.Entry column = (Map.Entry) each.next();
            boolean isNew = !sources.containsKey(column.getKey());
            boolean isSame = column.getValue().equals(sources.get(column.getKey()));
            sources.put(column.getKey(), isNew || isSame ? column.getValue() : null);
        }
    }

    private void addSources(LogicalPlan plan, Map found, Map counts) {
        if (plan instanceof CTERelationRef) {
            Long id = Long.valueOf(((CTERelationRef) plan).cteId());
            CTERelationDef shared = (CTERelationDef) commons.get(id);
            if (shared != null && shared.output().size() == plan.output().size()) {
                // Once, however often it is used: tables may be made of each other.
                if (entered.add(id)) {
                    addSources(shared.child(), found, counts);
                }
                for (int i = 0; i < plan.output().size(); i++) {
                    define(number((Attribute) plan.output().apply(i)), (Expression) shared.output().apply(i));
                }
            }
        }
        Set below = new HashSet();
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            LogicalPlan child = (LogicalPlan) each.next();
            addSources(child, found, counts);
            for (Iterator column = list(child.output()).iterator(); column.hasNext();) {
                below.add(number((Attribute) column.next()));
            }
        }
        addDefinitions(plan);
        String node = null;
        List output = list(plan.output());
        for (int place = 0; place < output.size(); place++) {
            Object column = number((Attribute) output.get(place));
            if (below.contains(column) || definitions.containsKey(column) || found.containsKey(column)) {
                continue;
            }
            if (node == null) {
                Integer before = (Integer) counts.get(plan.nodeName());
                int count = before == null ? 1 : before.intValue() + 1;
                counts.put(plan.nodeName(), Integer.valueOf(count));
                node = plan.nodeName() + count;
            }
            found.put(column, node + "." + ((Attribute) output.get(place)).name() + "." + place);
        }
    }

    /** A common table, which stands in the plan once, wherever it is used. */
    public void addCommon(CTERelationDef table) {
        commons.put(Long.valueOf(table.id()), table);
    }

    /** What the optimizer has computed, for which no user has a name. */
    public void addOptimized(LogicalPlan plan) {
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            addOptimized((LogicalPlan) each.next());
        }
        addDefinitions(plan);
    }

    private void addDefinitions(LogicalPlan plan) {
        if (plan instanceof BaseEvalPython) {
            List functions = list(((BaseEvalPython) plan).udfs());
            List results = list(((BaseEvalPython) plan).resultAttrs());
            for (int i = 0; i < functions.size(); i++) {
                define(number((Attribute) results.get(i)), (Expression) functions.get(i));
            }
        }
        for (Iterator each = list(plan.expressions()).iterator(); each.hasNext();) {
            addAliases((Expression) each.next());
        }
    }

    private void addAliases(Expression expression) {
        if (expression instanceof Alias) {
            define(Long.valueOf(((Alias) expression).exprId().id()), ((Alias) expression).child());
        }
        for (Iterator each = list(expression.children()).iterator(); each.hasNext();) {
            addAliases((Expression) each.next());
        }
    }

    private void define(Object column, Expression expression) {
        if (!definitions.containsKey(column)) {
            definitions.put(column, expression);
        }
    }

    /** With columns by their names alone, as each plan has them. */
    public String named(Expression expression) {
        StringBuilder text = new StringBuilder();
        say(expression, false, text, new ArrayList());
        return text.toString();
    }

    /** With columns by what they are made of. */
    public String placed(Expression expression) {
        StringBuilder text = new StringBuilder();
        say(expression, true, text, new ArrayList());
        return text.toString();
    }

    /** Whether of all columns that were asked for it is known what they are made of. */
    public boolean areAllPlaced() {
        return areAllPlaced;
    }

    /** Whether some column was computed by what is another for a row that comes elsewhere, or at another place. */
    public boolean isUnsteady() {
        return isUnsteady;
    }

    private void say(Expression expression, boolean isPlaced, StringBuilder text, List variables) {
        if (expression instanceof NamedLambdaVariable) {
            text.append("variable").append(place(variables, ((NamedLambdaVariable) expression).exprId()));
            return;
        }
        if (expression instanceof CommonExpressionRef) {
            text.append("common").append(place(variables, ((CommonExpressionRef) expression).id()));
            return;
        }
        if (expression instanceof CommonExpressionDef) {
            CommonExpressionDef common = (CommonExpressionDef) expression;
            text.append("common").append(place(variables, common.id())).append('=');
            say(common.child(), isPlaced, text, variables);
            return;
        }
        if (expression instanceof Attribute) {
            Attribute column = (Attribute) expression;
            text.append(isPlaced ? place(column) : column.name());
            return;
        }
        if (expression instanceof Alias) {
            say(((Alias) expression).child(), isPlaced, text, variables);
            return;
        }
        if (expression instanceof Literal) {
            DataType type = expression.dataType();
            text.append(isClock(type) ? (Object) "time" : expression).append(' ').append(type);
            return;
        }
        if (isPlaced && !expression.deterministic()) {
            isUnsteady |= isUnsteadyItself(expression);
        }
        String name = expression.getClass().getSimpleName();
        asksTime |= TIMES.contains(name);
        text.append(name);
        if (isPlaced && expression instanceof PythonFuncExpression) {
            sayFunction(((PythonFuncExpression) expression).func(), text);
        }
        if (expression instanceof Product) {
            sayParts((Product) expression, text);
        }
        if (isPlaced && expression instanceof SubqueryExpression) {
            sayQuery((LogicalPlan) ((SubqueryExpression) expression).plan(), text);
        }
        text.append('(');
        if (expression instanceof In) {
            say(((In) expression).value(), isPlaced, text, variables);
            // Programs make such lists of sets.
            List values = new ArrayList();
            for (Iterator each = list(((In) expression).list()).iterator(); each.hasNext();) {
                StringBuilder value = new StringBuilder();
                say((Expression) each.next(), isPlaced, value, variables);
                values.add(value.toString());
            }
            Collections.sort(values);
            text.append(values);
        } else {
            for (Iterator each = list(expression.children()).iterator(); each.hasNext();) {
                say((Expression) each.next(), isPlaced, text, variables);
                text.append(',');
            }
        }
        text.append(')');
    }

    /** What Spark numbers anew in each query goes by the place where it is first met. */
    private static int place(List met, Object id) {
        if (!met.contains(id)) {
            met.add(id);
        }
        return met.indexOf(id);
    }

    /** Whether some expression that was said is the time of the query. */
    public boolean asksTime() {
        return asksTime;
    }

    /** Whether a literal of a type may be what the clock said when the query was planned. */
    public boolean isClock(DataType type) {
        return false;
    }

    /** What a function is, for those who tell functions of one name apart. */
    public void sayFunction(PythonFunction function, StringBuilder text) {}

    /** What a query is that stands in an expression, for those who tell queries apart. */
    public void sayQuery(LogicalPlan query, StringBuilder text) {}

    /** Of what an expression or a plan has besides others, what is the same in each process. */
    public static void sayParts(Product parts, StringBuilder text) {
        for (int i = 0; i < parts.productArity(); i++) {
            text.append(' ');
            sayPart(parts.productElement(i), text);
        }
    }

    /** One of these; nothing of what may be another in each process. */
    public static void sayPart(Object part, StringBuilder text) {
        if (part instanceof String || part instanceof UTF8String || part instanceof Number || part instanceof Boolean
            || part instanceof Character || part instanceof DataType || part instanceof scala.Enumeration.Value) {
            text.append(part);
        } else if (part instanceof Option) {
            if (((Option) part).isDefined()) {
                sayPart(((Option) part).get(), text);
            }
        } else if (part instanceof Seq) {
            for (Iterator each = list((Seq) part).iterator(); each.hasNext();) {
                sayPart(each.next(), text);
                text.append(' ');
            }
        } else if (part instanceof byte[]) {
            text.append(Arrays.toString((byte[]) part));
        } else if (part instanceof scala.collection.Set) {
            // The values of a long IN, in no order.
            sayAll(CollectionConverters.asJava((scala.collection.Set) part), text);
        } else if (part instanceof scala.collection.Map) {
            sayAll(CollectionConverters.asJava((scala.collection.Map) part).entrySet(), text);
        } else if (part instanceof Map) {
            sayAll(((Map) part).entrySet(), text);
        } else if (part instanceof Product && !(part instanceof TreeNode) && !isLeftOut(part)) {
            // Whether up or down, which rows of a window, the value of a variable, and the like.
            Product parts = (Product) part;
            text.append(parts.productPrefix());
            for (int i = 0; i < parts.productArity(); i++) {
                if (parts.productElement(i) instanceof Literal) {
                    text.append(' ').append(parts.productElement(i));
                }
            }
            sayParts(parts, text);
        }
    }

    /** Whether a part is another each time, is said elsewhere, or says nothing of rows. */
    private static boolean isLeftOut(Object part) {
        return part instanceof ExprId || part instanceof PythonFunction || part instanceof JoinHint;
    }

    /** What is in no order. */
    private static void sayAll(Iterable elements, StringBuilder text) {
        List all = new ArrayList();
        for (Iterator each = elements.iterator(); each.hasNext();) {
            Object element = each.next();
            all.add(element instanceof byte[] ? Arrays.toString((byte[]) element) : String.valueOf(element));
        }
        Collections.sort(all);
        text.append(all);
    }

    /** The tokens of the uses of causal functions that are in the expressions of a node. */
    public static Set uses(QueryPlan node) {
        Set found = new HashSet();
        for (Iterator each = list(node.expressions()).iterator(); each.hasNext();) {
            addUses((Expression) each.next(), found);
        }
        return found;
    }

    /** Whether a use of a causal function is in an expression. */
    public static boolean asks(Expression expression, String token) {
        Set found = new HashSet();
        addUses(expression, found);
        return found.contains(token);
    }

    private static void addUses(Expression expression, Set found) {
        if (expression instanceof PythonFuncExpression) {
            String token = mark((PythonFuncExpression) expression);
            if (token != null) {
                found.add(token);
            }
        }
        for (Iterator each = list(expression.children()).iterator(); each.hasNext();) {
            addUses((Expression) each.next(), found);
        }
    }

    private static boolean isUnsteadyItself(Expression expression) {
        for (Iterator each = list(expression.children()).iterator(); each.hasNext();) {
            if (!((Expression) each.next()).deterministic()) {
                return false;
            }
        }
        // What a causal function says of a row is recorded.
        return !(expression instanceof PythonFuncExpression) || mark((PythonFuncExpression) expression) == null;
    }

    private String place(Attribute column) {
        Object number = number(column);
        Object source = sources.get(number);
        if (source != null) {
            return (String) source;
        }
        Object known = said.get(number);
        if (known != null) {
            return (String) known;
        }
        Expression definition = (Expression) definitions.get(number);
        if (definition == null || sources.containsKey(number)) {
            areAllPlaced = false;
            return column.name();
        }
        // Columns may be computed of each other a hundred times over.
        said.put(number, "itself");
        String place = "=" + digest(placed(definition));
        said.put(number, place);
        return place;
    }

    public static String digest(String text) {
        try {
            byte[] bytes = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(bytes, 0, 16);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The mark of the use that a function is, with its token; null of one that is not causal. */
    public static String mark(PythonFuncExpression expression) {
        String text = pickled(expression.func());
        // Those before the last are of functions that this one refers to.
        int last = text.lastIndexOf(MARK);
        return last < 0 ? null : text.substring(last + MARK.length(), Math.min(text.length(), last + MARK.length() + 16));
    }

    /** What a function was pickled to, a character for each byte. */
    public static String pickled(PythonFunction function) {
        byte[] pickled = (byte[]) function.command().toArray(scala.reflect.ClassTag$.MODULE$.Byte());
        return new String(pickled, StandardCharsets.ISO_8859_1);
    }

    private static Object number(Attribute column) {
        return Long.valueOf(column.exprId().id());
    }

    protected static List list(Seq elements) {
        return CollectionConverters.asJava(elements);
    }
}
