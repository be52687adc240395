package io.clonos;

import java.lang.ref.Reference;
import java.lang.ref.ReferenceQueue;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Predicate;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BitwiseAnd;
import org.apache.spark.sql.catalyst.expressions.BitwiseOr;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.XxHash64;
import org.apache.spark.sql.catalyst.plans.logical.ArrowEvalPython;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Repartition;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.NullType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Hands causal functions behind a shuffle a mark of each row: a hash of its keys, where it has some, or else of all
 * columns that are read above them, as the last of their arguments. Rows with equal arguments may trade places there, and the
 * mark tells which is which.
 *
 * <p>An optimizer rule, as columns are known to be read when the optimizer has pruned the others. It runs in the
 * driver only: in the plan there are nothing but Spark's own expressions. {@code row_marks.py} compiles it with the
 * compiler that Spark compiles queries with, which knows no generics, lambdas or loops over iterables.
 *
 * <p>The bits of a mark are those of {@code src/task/marks.rs}.
 */
public class RowMarks extends Rule {
    private static final Logger LOG = LoggerFactory.getLogger("clonos");
    private static final long HASH = ~0x1ffffL;
    private static final int COLUMNS = 0xffff;
    private static final TreeNodeTag MARKED = new TreeNodeTag("clonos.marked");
    /** Nodes that leave rows in the order of their input, if that is one file, or one partition of a source. */
    private static final Set IN_ORDER = new HashSet();

    static {
        String[] names = {
            "Project", "Filter", "LocalLimit", "Union", "Range", "LocalRelation", "LogicalRelation", "OneRowRelation",
            "DataSourceV2ScanRelation", "StreamingDataSourceV2ScanRelation", "HiveTableRelation", "Generate",
            "Expand", "Sample", "EventTimeWatermark", "SubqueryAlias", "View", "ArrowEvalPython", "BatchEvalPython",
            "MapInPandas", "MapInArrow", "PythonMapInArrow", "DeserializeToObject", "SerializeFromObject",
            "MapPartitions", "MapElements"
        };
        for (int i = 0; i < names.length; i++) {
            IN_ORDER.add(names[i]);
        }
    }

    private static final Set CHOOSES = new HashSet(
        Arrays.asList(new String[] {"Filter", "LocalLimit", "GlobalLimit", "Sort", "SubqueryAlias"}));
    /** By identity: whether a function takes marks. Those that are not here are not ours. */
    private final Map functions = new ConcurrentHashMap();
    private final ReferenceQueue gone = new ReferenceQueue();

    /** A causal function, as long as some column has it. */
    public void add(Object function, boolean takesMarks) {
        for (Reference reference = gone.poll(); reference != null; reference = gone.poll()) {
            functions.remove(reference);
        }
        functions.put(new Identity(function, gone), Boolean.valueOf(takesMarks));
    }

    /** Functions that some column has. */
    public int size() {
        return functions.size();
    }

    public TreeNode apply(TreeNode plan) {
        if (functions.isEmpty()) {
            return plan;
        }
        try {
            return ((LogicalPlan) plan).transformUp(new AbstractPartialFunction() {
                public boolean isDefinedAt(Object node) {
                    return node instanceof ArrowEvalPython;
                }

                public Object applyOrElse(Object node, scala.Function1 orElse) {
                    return node instanceof ArrowEvalPython ? marked((ArrowEvalPython) node) : orElse.apply(node);
                }
            });
        } catch (Exception error) {
            return unmarked(plan, error);
        } catch (LinkageError error) {
            return unmarked(plan, error);
        } catch (AssertionError error) {
            return unmarked(plan, error);
        } catch (StackOverflowError error) {
            return unmarked(plan, error);
        }
    }

    /** A query must not fail by what another Spark has otherwise. */
    private static TreeNode unmarked(TreeNode plan, Throwable error) {
        LOG.warn("rows of a query are not marked: give row_key= where equal arguments have several answers", error);
        return plan;
    }

    /** Adds marks to the functions of a node, if some take them. */
    private LogicalPlan marked(ArrowEvalPython node) {
        boolean takes = false;
        for (Iterator each = list(node.udfs()).iterator(); each.hasNext();) {
            takes |= takesInside((Expression) each.next());
        }
        if (!takes || !isReordered(node.child())) {
            return node;
        }
        LogicalPlan child = apart(node);
        if (child != node.child()) {
            List columns = new ArrayList(list(node.child().output()));
            columns.addAll(list(node.resultAttrs()));
            return new Project(seq(columns), marked((ArrowEvalPython) child));
        }
        // In a stream, other columns may be another state.
        Keys keys = child.isStreaming() ? null : Keys.of(child);
        Expression mark = keys == null ? null : mark(keys);
        if (mark == null) {
            keys = null;
            mark = mark(child);
        }
        LogicalPlan below = keys == null ? child : keys.plan;
        List udfs = new ArrayList();
        for (Iterator each = list(node.udfs()).iterator(); each.hasNext();) {
            PythonUDF udf = (PythonUDF) each.next();
            if (takesMarks(udf)) {
                List arguments = new ArrayList(list(udf.children()));
                arguments.add(keys == null && isAllGiven(udf, child) ? nothing(child) : mark);
                udf = copy(udf, arguments);
                udf.setTagValue(MARKED, Boolean.TRUE);
            }
            udfs.add(udf);
        }
        LogicalPlan marked = new ArrowEvalPython(seq(udfs), node.resultAttrs(), below, node.evalType());
        if (below == child) {
            return marked;
        }
        List columns = new ArrayList(list(child.output()));
        columns.addAll(list(node.resultAttrs()));
        return new Project(seq(columns), marked);
    }

    /**
     * Spark runs f(g(x)) in one node, where f cannot be given anything but what g gives: puts g into a node below,
     * if one of them takes marks. The child of the node, if none does.
     */
    private LogicalPlan apart(ArrowEvalPython node) {
        List inner = new ArrayList();
        List results = new ArrayList();
        List udfs = new ArrayList();
        for (Iterator each = list(node.udfs()).iterator(); each.hasNext();) {
            PythonUDF udf = (PythonUDF) each.next();
            List arguments = new ArrayList();
            for (Iterator child = list(udf.children()).iterator(); child.hasNext();) {
                Expression argument = (Expression) child.next();
                if (argument instanceof PythonUDF && (takesMarks(udf) || takesInside(argument))) {
                    AttributeReference result = new AttributeReference("inner" + inner.size(), argument.dataType(),
                        true, Metadata.empty(), NamedExpression$.MODULE$.newExprId(), seq(new ArrayList()));
                    inner.add(argument);
                    results.add(result);
                    argument = result;
                }
                arguments.add(argument);
            }
            udfs.add(copy(udf, arguments));
        }
        if (inner.isEmpty()) {
            return node.child();
        }
        LogicalPlan below = new ArrowEvalPython(seq(inner), seq(results), node.child(), node.evalType());
        below = marked((ArrowEvalPython) below);
        return new ArrowEvalPython(seq(udfs), node.resultAttrs(), below, node.evalType());
    }

    private static PythonUDF copy(PythonUDF udf, List arguments) {
        return new PythonUDF(udf.name(), udf.func(), udf.dataType(), seq(arguments), udf.evalType(),
            udf.udfDeterministic(), udf.resultId());
    }

    private boolean takesMarks(PythonUDF udf) {
        return Boolean.TRUE.equals(known(udf)) && udf.getTagValue(MARKED).isEmpty();
    }

    private boolean takesInside(Expression expression) {
        if (expression instanceof PythonUDF && takesMarks((PythonUDF) expression)) {
            return true;
        }
        for (Iterator each = list(expression.children()).iterator(); each.hasNext();) {
            if (takesInside((Expression) each.next())) {
                return true;
            }
        }
        return false;
    }

    private Boolean known(PythonUDF udf) {
        return (Boolean) functions.get(new Identity(udf.func(), null));
    }

    /** The mark of a row that is known by its keys; null if these may be others in another run. */
    private Expression mark(Keys keys) {
        Changing changing = changing(keys.plan);
        List values = new ArrayList();
        StringBuilder shape = new StringBuilder("keys");
        boolean partial = false;
        boolean leavesMade = false;
        boolean tellsMade = false;
        for (int i = 0; i < keys.columns.size(); i++) {
            Attribute column = (Attribute) keys.columns.get(i);
            boolean isMade = keys.isMade(column);
            if (!Keys.isHashed(column.dataType()) || changing.has(column)) {
                if (!isMade) {
                    return null;
                }
                leavesMade = true;
                continue;
            }
            tellsMade |= isMade;
            partial |= Keys.addHashed(column, values);
            shape.append('\n').append(keys.names.get(i)).append('\t').append(column.dataType().json());
        }
        // What was made of one row is told apart by something of it, if not by all.
        return leavesMade && !tellsMade ? null : mark(values, shape, partial || leavesMade);
    }

    private Changing changing(LogicalPlan plan) {
        Changing changing = new Changing(new Predicate() {
            public boolean test(Object udf) {
                return known((PythonUDF) udf) != null;
            }
        });
        changing.find(plan);
        return changing;
    }

    private static Expression mark(List values, StringBuilder shape, boolean partial) {
        long rest = rest(shape) | (partial ? 1 : 0);
        Expression hash = values.isEmpty() ? number(HASH) : new XxHash64(seq(values), 42L);
        return new BitwiseOr(new BitwiseAnd(hash, number(HASH)), number(rest));
    }

    /** Of which columns a mark is; never 0. */
    private static long rest(StringBuilder shape) {
        return Math.max((long) (shape.toString().hashCode() & COLUMNS), 1L) << 1;
    }

    /** Whether nothing is read of a row but what a function is given: then the mark tells nothing. */
    private static boolean isAllGiven(PythonUDF udf, LogicalPlan plan) {
        Set given = new HashSet();
        for (Iterator each = list(udf.children()).iterator(); each.hasNext();) {
            Object argument = each.next();
            given.add(argument instanceof Attribute ? ((Attribute) argument).exprId() : argument);
        }
        for (Iterator each = list(plan.output()).iterator(); each.hasNext();) {
            if (!given.contains(((Attribute) each.next()).exprId())) {
                return false;
            }
        }
        return true;
    }

    /** The mark of a row of this plan, of all of its columns. */
    private Expression mark(LogicalPlan plan) {
        Changing changing = changing(plan);
        List values = new ArrayList();
        boolean partial = false;
        for (Iterator each = list(plan.output()).iterator(); each.hasNext();) {
            Attribute column = (Attribute) each.next();
            DataType type = column.dataType();
            if (!Keys.isHashed(type) || changing.has(column)) {
                partial |= !(type instanceof NullType);
                continue;
            }
            partial |= Keys.addPlain(column, values);
        }
        StringBuilder shape = new StringBuilder();
        describe(plan, shape);
        return mark(values, shape, partial);
    }

    /** The mark of rows of which nothing is read but what their function is given. */
    private static Expression nothing(LogicalPlan plan) {
        StringBuilder shape = new StringBuilder();
        describe(plan, shape);
        return number(rest(shape));
    }

    private static Expression number(long value) {
        return new Literal(Long.valueOf(value), LongType$.MODULE$);
    }

    /** Which columns there are: the same in another run of the program, and another where others are read. */
    private static void describe(LogicalPlan plan, StringBuilder shape) {
        // Which rows there are, and in which order, makes no other columns.
        boolean chooses = CHOOSES.contains(plan.getClass().getSimpleName());
        if (!chooses) {
            shape.append(plan.nodeName());
            for (Iterator each = list(plan.output()).iterator(); each.hasNext();) {
                Attribute column = (Attribute) each.next();
                shape.append('\n').append(column.name()).append('\t').append(column.dataType().json());
            }
            for (Iterator each = list(plan.expressions()).iterator(); each.hasNext();) {
                Expression expression = (Expression) each.next();
                // Attributes are named above, and their numbers are others in each run.
                if (!(expression instanceof Attribute)) {
                    shape.append('\n').append(expression.sql());
                }
            }
        }
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            if (chooses) {
                describe((LogicalPlan) each.next(), shape);
            } else {
                shape.append('(');
                describe((LogicalPlan) each.next(), shape);
                shape.append(')');
            }
        }
    }

    /** Whether rows may come in another order when this is computed again. */
    private static boolean isReordered(LogicalPlan plan) {
        if (plan instanceof LogicalRDD) {
            return Changing.isShuffled(((LogicalRDD) plan).rdd());
        }
        boolean inOrder = plan instanceof Repartition
            ? !((Repartition) plan).shuffle() : IN_ORDER.contains(plan.getClass().getSimpleName());
        if (!inOrder) {
            return true;
        }
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            if (isReordered((LogicalPlan) each.next())) {
                return true;
            }
        }
        return false;
    }

    private static List list(scala.collection.Seq elements) {
        return CollectionConverters.asJava(elements);
    }

    private static scala.collection.immutable.Seq seq(List elements) {
        return CollectionConverters.asScala(elements).toSeq();
    }

    /** A function that is kept by nobody else is not kept by this either. */
    private static class Identity extends WeakReference {
        private final int hash;

        Identity(Object function, ReferenceQueue gone) {
            super(function, gone);
            hash = System.identityHashCode(function);
        }

        public int hashCode() {
            return hash;
        }

        public boolean equals(Object other) {
            if (this == other) {
                return true;
            }
            Object function = get();
            return function != null && other instanceof Identity && ((Identity) other).get() == function;
        }
    }
}
