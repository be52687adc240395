package io.clonos;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.Stack;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.BaseEvalPython;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Which columns of a plan may have other values when a row is computed again.
 *
 * <p>Floats are as they were where they are read, and where something is made of them row by row. Their sums differ in
 * the last digit when rows come in another order, and so do functions that processors compute in their own ways.
 */
public class Changing {
    /** Aggregates that take one of several rows that are equal in their order. */
    private static final Set ANY_OF_EQUALS = new HashSet(Arrays.asList(new String[] {
        "MaxBy", "MinBy", "MaxMinByK", "Mode", "ApproximatePercentile", "HllSketchAgg", "KllSketchAggBigint"
    }));
    /** Functions whose last digit is up to the processor. */
    private static final Set INEXACT = new HashSet(Arrays.asList(new String[] {
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Cbrt", "Cos", "Cosh", "Cot", "Csc", "Exp", "Expm1",
        "Hypot", "Log", "Log10", "Log1p", "Log2", "Logarithm", "Pow", "Sec", "Sin", "Sinh", "Tan", "Tanh"
    }));
    /** Leaves that read values as somebody wrote them. */
    private static final Set READS = new HashSet(Arrays.asList(new String[] {
        "LocalRelation", "LogicalRelation", "DataSourceV2ScanRelation", "StreamingDataSourceV2ScanRelation",
        "HiveTableRelation"
    }));
    /** Nodes that make something of one row at a time, and always the same. */
    private static final Set BY_ROW = new HashSet(Arrays.asList(new String[] {"Generate"}));

    /** Nodes that keep one of several rows, any of them, or do not show what is below. */
    private static final Set CHANGES = new HashSet(Arrays.asList(new String[] {
        "CTERelationRef", "WindowGroupLimit", "Deduplicate", "DeduplicateWithinWatermark"
    }));

    /** Of a Python function: whether its answers are recorded. */
    private final Predicate causal;
    private final Set columns = new HashSet();

    public Changing(Predicate causal) {
        this.causal = causal;
    }

    /** Whether a column's values may be others the next time. */
    public boolean has(Attribute column) {
        return columns.contains(column.exprId());
    }

    /** Looks at a plan and all below it. */
    public void find(LogicalPlan plan) {
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            find((LogicalPlan) each.next());
        }
        if (plan.children().isEmpty()) {
            if (CHANGES.contains(plan.getClass().getSimpleName())) {
                addAll(plan.output(), false);
            } else if (!readsAgain(plan)) {
                addAll(plan.output(), true);
            }
        } else if (plan instanceof BaseEvalPython) {
            Iterator results = list(((BaseEvalPython) plan).resultAttrs()).iterator();
            for (Iterator each = list(((BaseEvalPython) plan).udfs()).iterator(); each.hasNext();) {
                PythonUDF udf = (PythonUDF) each.next();
                Attribute result = (Attribute) results.next();
                boolean answersAgain = causal.test(udf)
                    || udf.udfDeterministic() && !holdsFloat(udf.dataType());
                if (!answersAgain || readsOneOf(udf)) {
                    columns.add(result.exprId());
                }
            }
        } else if (plan instanceof Project || plan instanceof Aggregate) {
            for (Iterator each = list(plan.expressions()).iterator(); each.hasNext();) {
                Object expression = each.next();
                if (expression instanceof Alias
                        && (isAnother((Expression) expression)
                            || plan instanceof Aggregate && sumsFloats((Alias) expression))) {
                    columns.add(((Alias) expression).exprId());
                }
            }
        } else if (plan instanceof Union) {
            for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
                Iterator outputs = list(plan.output()).iterator();
                for (Iterator of = list(((LogicalPlan) each.next()).output()).iterator(); of.hasNext();) {
                    Attribute column = (Attribute) outputs.next();
                    if (columns.contains(((Attribute) of.next()).exprId())) {
                        columns.add(column.exprId());
                    }
                }
            }
        } else if (plan instanceof Expand) {
            for (Iterator each = list(((Expand) plan).projections()).iterator(); each.hasNext();) {
                Iterator outputs = list(plan.output()).iterator();
                for (Iterator of = list((scala.collection.Seq) each.next()).iterator(); of.hasNext();) {
                    Attribute column = (Attribute) outputs.next();
                    if (isAnother((Expression) of.next())) {
                        columns.add(column.exprId());
                    }
                }
            }
        } else if (plan instanceof Generate && ((Generate) plan).generator() instanceof Stack) {
            findStacked((Generate) plan);
        } else if (CHANGES.contains(plan.getClass().getSimpleName()) || choosesOther(plan)) {
            addAll(plan.output(), false);
        } else {
            // Of rows that are equal to a window's order, each may be the first.
            boolean all = plan instanceof Window || readsOneOf(plan.expressions());
            if (all || !BY_ROW.contains(plan.getClass().getSimpleName())) {
                addAll(plan.producedAttributes().toSeq(), !all);
            }
        }
    }

    /** Looks at each column of what {@code stack(n, ...)} makes, which is given row by row. */
    private void findStacked(Generate plan) {
        List made = list(plan.generatorOutput());
        List given = list(((TreeNode) plan.generator()).children());
        for (int i = 1; i < given.size(); i++) {
            if (isAnother((Expression) given.get(i))) {
                columns.add(((Attribute) made.get((i - 1) % made.size())).exprId());
            }
        }
    }

    /** Whether a leaf gives floats as they were: who sums them has another last digit each time. */
    private static boolean readsAgain(LogicalPlan plan) {
        return plan instanceof LogicalRDD
            ? !isShuffled(((LogicalRDD) plan).rdd()) : READS.contains(plan.getClass().getSimpleName());
    }

    /** Whether an aggregate's column may be another in the last digit when rows come in another order. */
    private static boolean sumsFloats(Alias column) {
        return !(column.child() instanceof Attribute)
            && (holdsFloat(column.dataType()) || readsFloat(column));
    }

    /** Whether a node keeps rows by what may be another value the next time. */
    private boolean choosesOther(LogicalPlan plan) {
        return (plan instanceof Filter || plan instanceof Join) && readsOneOf(plan.expressions());
    }

    /** Adds columns to a set, or the floats among them. */
    private void addAll(scala.collection.Seq added, boolean floats) {
        for (Iterator each = list(added).iterator(); each.hasNext();) {
            Attribute column = (Attribute) each.next();
            if (!floats || holdsFloat(column.dataType())) {
                columns.add(column.exprId());
            }
        }
    }

    private static boolean readsFloat(Expression expression) {
        for (Iterator each = list(expression.references().toSeq()).iterator(); each.hasNext();) {
            if (holdsFloat(((Attribute) each.next()).dataType())) {
                return true;
            }
        }
        return false;
    }

    private boolean readsOneOf(scala.collection.Seq expressions) {
        for (Iterator each = list(expressions).iterator(); each.hasNext();) {
            if (isAnother((Expression) each.next())) {
                return true;
            }
        }
        return false;
    }

    private boolean isAnother(Expression expression) {
        return !expression.deterministic() || takesAny(expression) || readsOneOf(expression);
    }

    private static boolean takesAny(Expression expression) {
        String name = expression.getClass().getSimpleName();
        if (ANY_OF_EQUALS.contains(name) || INEXACT.contains(name)) {
            return true;
        }
        for (Iterator each = list(expression.children()).iterator(); each.hasNext();) {
            if (takesAny((Expression) each.next())) {
                return true;
            }
        }
        return false;
    }

    private boolean readsOneOf(Expression expression) {
        for (Iterator each = list(expression.references().toSeq()).iterator(); each.hasNext();) {
            Attribute column = (Attribute) each.next();
            if (columns.contains(column.exprId())) {
                return true;
            }
        }
        return false;
    }

    private static boolean holdsFloat(DataType type) {
        if (type instanceof ArrayType) {
            return holdsFloat(((ArrayType) type).elementType());
        }
        if (type instanceof MapType) {
            return holdsFloat(((MapType) type).keyType()) || holdsFloat(((MapType) type).valueType());
        }
        if (type instanceof StructType) {
            StructField[] fields = ((StructType) type).fields();
            for (int i = 0; i < fields.length; i++) {
                if (holdsFloat(fields[i].dataType())) {
                    return true;
                }
            }
        }
        return type instanceof DoubleType || type instanceof FloatType;
    }

    /** Whether a shuffle is behind it. */
    public static boolean isShuffled(RDD rdd) {
        for (Iterator each = list(rdd.dependencies()).iterator(); each.hasNext();) {
            org.apache.spark.Dependency on = (org.apache.spark.Dependency) each.next();
            if (on instanceof ShuffleDependency || isShuffled(on.rdd())) {
                return true;
            }
        }
        return false;
    }

    private static List list(scala.collection.Seq elements) {
        return CollectionConverters.asJava(elements);
    }
}
