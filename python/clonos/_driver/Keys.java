package io.clonos;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CollationKey;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.BooleanType$;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.IntegerType$;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.types.YearMonthIntervalType;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Columns that tell the rows of a plan apart whichever others a query reads, and the plan with these in its output.
 *
 * <p>Behind a {@code groupBy}, {@code distinct} or {@code dropDuplicates} a row is its keys: Spark has them in each query, as
 * it groups by them, though it leaves them out of the result where nobody reads them.
 */
public class Keys {
    /** Nodes that choose among rows, put them elsewhere, or add columns to each. */
    private static final Set LEAVE_ROWS = new HashSet(Arrays.asList(new String[] {
        "Filter", "Sort", "LocalLimit", "GlobalLimit", "Repartition", "RepartitionByExpression", "RebalancePartitions",
        "Sample", "SubqueryAlias", "ResolvedHint", "Window", "WindowGroupLimit", "ArrowEvalPython", "BatchEvalPython"
    }));

    /** The plan with them. */
    public final LogicalPlan plan;
    /** Attributes of its output. */
    public final List columns;
    /** What they were called where rows were grouped: later names depend on what is read. */
    public final List names;
    /** Numbers of those that a generator has made, of which some may do. */
    private final Set made;

    private Keys(LogicalPlan plan, List columns, List names, Set made) {
        this.plan = plan;
        this.columns = columns;
        this.names = names;
        this.made = made;
    }

    /** Whether a key tells nothing but which it is of the rows that were made of one. */
    public boolean isMade(Attribute column) {
        return made.contains(number(column));
    }

    /** Those of a plan; null where none are known, and none at all where it has one row. */
    public static Keys of(LogicalPlan plan) {
        if (plan instanceof Aggregate) {
            return ofGroups((Aggregate) plan);
        }
        if (plan instanceof Join) {
            return ofJoin((Join) plan);
        }
        if (plan instanceof Generate) {
            return ofGenerated((Generate) plan);
        }
        if (plan instanceof Expand) {
            return ofExpanded((Expand) plan);
        }
        boolean isProject = plan instanceof Project;
        if (!isProject && !LEAVE_ROWS.contains(plan.getClass().getSimpleName())) {
            return null;
        }
        Keys below = of((LogicalPlan) plan.children().apply(0));
        if (below == null) {
            return null;
        }
        if (!isProject) {
            return new Keys(over(plan, below.plan), below.columns, below.names, below.made);
        }
        List output = new ArrayList(list(((Project) plan).projectList()));
        List columns = added(below.columns, output);
        return new Keys(new Project(seq(output), below.plan), columns, below.names, madeAs(below, columns));
    }

    private static Keys ofGroups(Aggregate plan) {
        List grouped = list(plan.groupingExpressions());
        for (Iterator each = grouped.iterator(); each.hasNext();) {
            if (!(each.next() instanceof Attribute)) {
                return null;
            }
        }
        List columns = grouped;
        List names = new ArrayList();
        Set made = new HashSet();
        for (Iterator each = grouped.iterator(); each.hasNext();) {
            names.add(((Attribute) each.next()).name());
        }
        // Where keys of rows below are among these, Spark may as well leave rows as they are; where they are these, it does not
        // group rows below.
        Keys below = of(plan.child());
        Set keys = numbers(grouped);
        if (below != null && below.columns.size() < keys.size() && keys.containsAll(numbers(below.columns))) {
            columns = below.columns;
            names = below.names;
            made = below.made;
        }
        List output = new ArrayList(list(plan.aggregateExpressions()));
        int before = output.size();
        columns = added(columns, output);
        if (output.size() == before) {
            return new Keys(plan, columns, names, made);
        }
        LogicalPlan with = copy(plan, new Object[] {plan.aggregateExpressions(), seq(output)});
        return new Keys(with, columns, names, made);
    }

    /** What is made of a row has its keys, and what was made. */
    private static Keys ofGenerated(Generate plan) {
        Keys below = of(plan.child());
        if (below == null) {
            return null;
        }
        Set keys = numbers(below.columns);
        List unread = new ArrayList();
        for (Iterator each = list(plan.unrequiredChildIndex()).iterator(); each.hasNext();) {
            Object place = each.next();
            Attribute column = (Attribute) plan.child().output().apply(((Integer) place).intValue());
            if (!keys.contains(number(column))) {
                unread.add(place);
            }
        }
        LogicalPlan with = copy(plan, new Object[] {
            plan.unrequiredChildIndex(), seq(unread), plan.child(), below.plan});
        List columns = new ArrayList(below.columns);
        columns.addAll(list(plan.generatorOutput()));
        List names = new ArrayList(below.names);
        Set made = new HashSet(below.made);
        for (Iterator each = list(plan.generatorOutput()).iterator(); each.hasNext();) {
            made.add(number((Attribute) each.next()));
            names.add("made");
        }
        return joined(with, columns, names, made);
    }

    /** Of each row several are made, known by which of them they are. */
    private static Keys ofExpanded(Expand plan) {
        Keys below = of(plan.child());
        if (below == null) {
            return null;
        }
        List projections = new ArrayList();
        for (Iterator each = list(plan.projections()).iterator(); each.hasNext();) {
            List projection = new ArrayList(list((scala.collection.Seq) each.next()));
            projection.addAll(below.columns);
            projection.add(new Literal(Integer.valueOf(projections.size()), IntegerType$.MODULE$));
            projections.add(seq(projection));
        }
        List columns = new ArrayList();
        for (Iterator each = below.columns.iterator(); each.hasNext();) {
            columns.add(((Attribute) each.next()).newInstance());
        }
        Set made = madeAs(below, columns);
        Alias place = named(new Literal(Integer.valueOf(0), IntegerType$.MODULE$), "place");
        columns.add(place.toAttribute());
        List names = new ArrayList(below.names);
        names.add("place");
        List output = new ArrayList(list(plan.output()));
        output.addAll(columns);
        LogicalPlan with = copy(plan, new Object[] {
            plan.projections(), seq(projections), plan.output(), seq(output), plan.child(), below.plan});
        return new Keys(with, columns, names, made);
    }

    /** A node with some of its parts replaced, each by the one behind it. */
    private static LogicalPlan copy(LogicalPlan plan, Object[] replaced) {
        Object[] parts = new Object[plan.productArity()];
        for (int i = 0; i < parts.length; i++) {
            parts[i] = plan.productElement(i);
            for (int j = 0; j < replaced.length; j += 2) {
                if (parts[i] == replaced[j]) {
                    parts[i] = replaced[j + 1];
                    break;
                }
            }
        }
        return (LogicalPlan) plan.makeCopy(parts);
    }

    /** Which of some columns stand for those of other keys that were made of one row. */
    private static Set madeAs(Keys keys, List columns) {
        Set made = new HashSet();
        for (int i = 0; i < columns.size(); i++) {
            if (keys.isMade((Attribute) keys.columns.get(i))) {
                made.add(number((Attribute) columns.get(i)));
            }
        }
        return made;
    }

    /** One row of each side makes a row; where a side has at most one for a row of the other, that one tells it. */
    private static Keys ofJoin(Join join) {
        // Not all of them have a name in SQL.
        String type = join.joinType().getClass().getSimpleName();
        Keys left = of(join.left());
        if (type.equals("LeftSemi$") || type.equals("LeftAnti$") || type.equals("ExistenceJoin")) {
            return left == null
                ? null : new Keys(over(join, left.plan, join.right()), left.columns, left.names, left.made);
        }
        boolean isInner = type.equals("Inner$") || type.equals("Cross$");
        if (!isInner && !type.equals("LeftOuter$") && !type.equals("RightOuter$") && !type.equals("FullOuter$")) {
            return null;
        }
        Keys right = of(join.right());
        if (left == null || right == null) {
            return null;
        }
        if (type.equals("FullOuter$")) {
            // A group of nulls that nothing matches, and a row that has no such side, have the same keys.
            left = present(left);
            right = present(right);
        }
        Set equal = new HashSet();
        if (join.condition().isDefined()) {
            Set ofLeft = numbers(list(join.left().output()));
            Set ofRight = numbers(list(join.right().output()));
            addEqual((Expression) join.condition().get(), ofLeft, ofRight, equal);
        }
        if ((isInner || type.equals("LeftOuter$")) && equal.containsAll(numbers(right.columns))) {
            return joined(over(join, left.plan, join.right()), left.columns, left.names, left.made);
        }
        if ((isInner || type.equals("RightOuter$")) && equal.containsAll(numbers(left.columns))) {
            return joined(over(join, join.left(), right.plan), right.columns, right.names, right.made);
        }
        List columns = new ArrayList(left.columns);
        columns.addAll(right.columns);
        List names = new ArrayList(left.names);
        names.addAll(right.names);
        Set made = new HashSet(left.made);
        made.addAll(right.made);
        return joined(over(join, left.plan, right.plan), columns, names, made);
    }

    /** With one more key, which is null where an outer join found no row of this side. */
    private static Keys present(Keys side) {
        Alias present = named(new Literal(Boolean.TRUE, BooleanType$.MODULE$), "present");
        List output = new ArrayList(list(side.plan.output()));
        output.add(present);
        List columns = new ArrayList(side.columns);
        columns.add(present.toAttribute());
        List names = new ArrayList(side.names);
        names.add("");
        return new Keys(new Project(seq(output), side.plan), columns, names, side.made);
    }

    private static Alias named(Expression expression, String name) {
        return new Alias(expression, name, NamedExpression$.MODULE$.newExprId(), seq(new ArrayList()), Option.empty(),
            seq(new ArrayList()));
    }

    /** Columns of a join as it has them: of an outer one's other side they may be null. */
    private static Keys joined(LogicalPlan join, List columns, List names, Set made) {
        List output = list(join.output());
        List found = new ArrayList();
        for (Iterator each = columns.iterator(); each.hasNext();) {
            Object number = number((Attribute) each.next());
            for (Iterator has = output.iterator(); has.hasNext();) {
                Attribute column = (Attribute) has.next();
                if (number(column).equals(number)) {
                    found.add(column);
                    break;
                }
            }
        }
        return found.size() == columns.size() ? new Keys(join, found, names, made) : null;
    }

    /** Columns of either side that must be equal to what is computed of the other: Spark may leave a join by them out. */
    private static void addEqual(Expression condition, Set ofLeft, Set ofRight, Set equal) {
        if (condition instanceof And) {
            addEqual(((And) condition).left(), ofLeft, ofRight, equal);
            addEqual(((And) condition).right(), ofLeft, ofRight, equal);
        } else if (condition instanceof EqualTo || condition instanceof EqualNullSafe) {
            Expression one = (Expression) condition.children().apply(0);
            Expression other = (Expression) condition.children().apply(1);
            addEqual(one, other, ofLeft, ofRight, equal);
            addEqual(other, one, ofLeft, ofRight, equal);
        }
    }

    private static void addEqual(Expression column, Expression to, Set ofLeft, Set ofRight, Set equal) {
        if (!(column instanceof Attribute) || !to.deterministic()) {
            return;
        }
        Object number = number((Attribute) column);
        Set read = numbers(new ArrayList(CollectionConverters.asJava(to.references().toSeq())));
        if ((ofLeft.contains(number) ? ofRight : ofLeft).containsAll(read)) {
            equal.add(number);
        }
    }

    /** Those columns as an output has them; what it does not have is added to it. */
    private static List added(List columns, List output) {
        List found = new ArrayList();
        for (Iterator each = columns.iterator(); each.hasNext();) {
            Attribute column = (Attribute) each.next();
            Attribute known = null;
            for (Iterator said = output.iterator(); known == null && said.hasNext();) {
                NamedExpression expression = (NamedExpression) said.next();
                Expression of = expression instanceof Alias ? ((Alias) expression).child() : (Expression) expression;
                if (of instanceof Attribute && number((Attribute) of).equals(number(column))) {
                    known = expression.toAttribute();
                }
            }
            if (known == null) {
                output.add(column);
                known = column;
            }
            found.add(known);
        }
        return found;
    }

    private static Set numbers(List columns) {
        Set numbers = new HashSet();
        for (Iterator each = columns.iterator(); each.hasNext();) {
            numbers.add(number((Attribute) each.next()));
        }
        return numbers;
    }

    private static Object number(Attribute column) {
        return Long.valueOf(column.exprId().id());
    }

    private static LogicalPlan over(LogicalPlan plan, LogicalPlan child) {
        List children = new ArrayList();
        children.add(child);
        return (LogicalPlan) plan.withNewChildren(seq(children));
    }

    private static LogicalPlan over(LogicalPlan plan, LogicalPlan left, LogicalPlan right) {
        List children = new ArrayList();
        children.add(left);
        children.add(right);
        return (LogicalPlan) plan.withNewChildren(seq(children));
    }

    /** Types that Spark hashes. */
    public static boolean isHashed(DataType type) {
        if (type instanceof ArrayType) {
            return isHashed(((ArrayType) type).elementType());
        }
        if (type instanceof StructType) {
            StructField[] fields = ((StructType) type).fields();
            for (int i = 0; i < fields.length; i++) {
                if (!isHashed(fields[i].dataType())) {
                    return false;
                }
            }
            return true;
        }
        return type instanceof StringType || type instanceof LongType || type instanceof IntegerType
            || type instanceof ShortType || type instanceof ByteType || type instanceof BooleanType
            || type instanceof DoubleType || type instanceof FloatType || type instanceof DecimalType
            || type instanceof BinaryType || type instanceof DateType
            || type instanceof TimestampType || type instanceof TimestampNTZType
            || type instanceof DayTimeIntervalType || type instanceof YearMonthIntervalType;
    }

    /** Adds a key to what is hashed of a row. Whether two that are not the same may be one then. */
    public static boolean addHashed(Attribute column, List values) {
        DataType type = column.dataType();
        if (type instanceof StringType && !((StringType) type).supportsBinaryEquality()) {
            // Which of equal texts a group has is up to their order.
            values.add(new CollationKey(column));
            values.add(new IsNull(column));
            return false;
        }
        return addPlain(column, values);
    }

    /** Adds a column as it stands. Nulls leave a hash as it is, and so does where an array ends. */
    public static boolean addPlain(Attribute column, List values) {
        values.add(column);
        // Whether there can be any may depend on the query.
        values.add(new IsNull(column));
        return column.dataType() instanceof ArrayType || column.dataType() instanceof StructType;
    }

    private static List list(scala.collection.Seq elements) {
        return CollectionConverters.asJava(elements);
    }

    private static scala.collection.immutable.Seq seq(List elements) {
        return CollectionConverters.asScala(elements).toSeq();
    }
}
