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
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
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

    private Keys(LogicalPlan plan, List columns, List names) {
        this.plan = plan;
        this.columns = columns;
        this.names = names;
    }

    /** Those of a plan; null where none are known. */
    public static Keys of(LogicalPlan plan) {
        if (plan instanceof Aggregate) {
            return ofGroups((Aggregate) plan);
        }
        if (plan instanceof Join) {
            return ofJoin((Join) plan);
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
            return new Keys(over(plan, below.plan), below.columns, below.names);
        }
        List output = new ArrayList(list(((Project) plan).projectList()));
        List columns = added(below.columns, output);
        return new Keys(new Project(seq(output), below.plan), columns, below.names);
    }

    private static Keys ofGroups(Aggregate plan) {
        List grouped = list(plan.groupingExpressions());
        for (Iterator each = grouped.iterator(); each.hasNext();) {
            if (!(each.next() instanceof Attribute)) {
                return null;
            }
        }
        if (grouped.isEmpty()) {
            return null;
        }
        List output = new ArrayList(list(plan.aggregateExpressions()));
        int before = output.size();
        List columns = added(grouped, output);
        List names = new ArrayList();
        for (Iterator each = grouped.iterator(); each.hasNext();) {
            names.add(((Attribute) each.next()).name());
        }
        if (output.size() == before) {
            return new Keys(plan, columns, names);
        }
        Object[] parts = new Object[plan.productArity()];
        for (int i = 0; i < parts.length; i++) {
            parts[i] = plan.productElement(i) == plan.aggregateExpressions() ? seq(output) : plan.productElement(i);
        }
        return new Keys((LogicalPlan) plan.makeCopy(parts), columns, names);
    }

    /** One row of each side makes a row; where a side has at most one for a row of the other, that one tells it. */
    private static Keys ofJoin(Join join) {
        String type = join.joinType().sql();
        Keys left = of(join.left());
        if (type.equals("LEFT SEMI") || type.equals("LEFT ANTI")) {
            return left == null ? null : new Keys(over(join, left.plan, join.right()), left.columns, left.names);
        }
        boolean isInner = type.equals("INNER") || type.equals("CROSS");
        if (!isInner && !type.equals("LEFT OUTER") && !type.equals("RIGHT OUTER") && !type.equals("FULL OUTER")) {
            return null;
        }
        Keys right = of(join.right());
        if (left != null && right != null) {
            Set equal = new HashSet();
            if (join.condition().isDefined()) {
                addEqual((Expression) join.condition().get(), numbers(list(join.left().output())), equal);
            }
            if ((isInner || type.equals("LEFT OUTER")) && equal.containsAll(numbers(right.columns))) {
                return new Keys(over(join, left.plan, join.right()), left.columns, left.names);
            }
            if ((isInner || type.equals("RIGHT OUTER")) && equal.containsAll(numbers(left.columns))) {
                return new Keys(over(join, join.left(), right.plan), right.columns, right.names);
            }
            List columns = new ArrayList(left.columns);
            columns.addAll(right.columns);
            List names = new ArrayList(left.names);
            names.addAll(right.names);
            return new Keys(over(join, left.plan, right.plan), columns, names);
        }
        return null;
    }

    /** Columns of either side that must be equal to one of the other. */
    private static void addEqual(Expression condition, Set ofLeft, Set equal) {
        if (condition instanceof And) {
            addEqual(((And) condition).left(), ofLeft, equal);
            addEqual(((And) condition).right(), ofLeft, equal);
        } else if (condition instanceof EqualTo || condition instanceof EqualNullSafe) {
            Expression one = (Expression) condition.children().apply(0);
            Expression other = (Expression) condition.children().apply(1);
            if (!(one instanceof Attribute) || !(other instanceof Attribute)) {
                return;
            }
            if (ofLeft.contains(number((Attribute) one)) != ofLeft.contains(number((Attribute) other))) {
                equal.add(number((Attribute) one));
                equal.add(number((Attribute) other));
            }
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

    private static List list(scala.collection.Seq elements) {
        return CollectionConverters.asJava(elements);
    }

    private static scala.collection.immutable.Seq seq(List elements) {
        return CollectionConverters.asScala(elements).toSeq();
    }
}
