package io.clonos;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.Dependency;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionSet;
import org.apache.spark.sql.catalyst.optimizer.BuildSide;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.ReusedSubqueryExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.UnionExec;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.adaptive.LogicalQueryStage;
import org.apache.spark.sql.execution.adaptive.QueryStageExec;
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.exchange.Exchange;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.joins.BroadcastHashJoinExec;
import org.apache.spark.sql.execution.joins.BroadcastNestedLoopJoinExec;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Whether rows come to a function in the order of what they are read from, whichever of their columns a query reads, as the plan
 * says that Spark runs: behind a shuffle they come in another one each time. And the sides of unions in which the function
 * stands.
 */
public class Order {
    /** Nodes that leave rows in the order of their input, which is that of their first child. */
    private static final Set KEEP = new HashSet(Arrays.asList(new String[] {
        "WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec", "RowToColumnarExec", "AdaptiveSparkPlanExec",
        "BroadcastQueryStageExec", "TableCacheQueryStageExec", "ReusedExchangeExec", "BroadcastExchangeExec",
        "CartesianProductExec", "ProjectExec", "FilterExec", "LocalLimitExec", "UnionExec",
        "GenerateExec", "ExpandExec", "SampleExec", "CoalesceExec", "CollectMetricsExec", "EventTimeWatermarkExec",
        "ArrowEvalPythonExec", "BatchEvalPythonExec", "ArrowEvalPythonUDTFExec", "BatchEvalPythonUDTFExec",
        "MapInPandasExec", "MapInArrowExec", "PythonMapInArrowExec",
        "DeserializeToObjectExec", "SerializeFromObjectExec", "MapPartitionsExec", "MapElementsExec",
        "RangeExec", "LocalTableScanExec", "OneRowRelationExec", "FileSourceScanExec", "RowDataSourceScanExec",
        "BatchScanExec", "MicroBatchScanExec", "HiveTableScanExec"
    }));

    /** Those in order, and those that are not, by the tokens of their uses. */
    private final Set found = new HashSet();
    private final Set lost = new HashSet();
    /** In which sides of unions they stand, by the same; empty of those that stand in several. */
    private final Map sides = new HashMap();
    /** Which stages ask them, by the same. */
    private final Map stages = new HashMap();

    /**
     * What is known of the functions of a plan, by the tokens of their uses: a list of whether their rows come in order,
     * wherever they are in it, whether one stage asks them wherever, and of the unions between them and the end of their stage,
     * for each of these, from there down, the number of the side and of all sides. Nothing of no plan.
     */
    public static Map of(Object plan) {
        Order order = new Order();
        if (plan != null) {
            order.find((SparkPlan) plan, plan, Collections.EMPTY_LIST);
        }
        Map all = new HashMap();
        for (Iterator each = order.sides.entrySet().iterator(); each.hasNext();) {
            Map.Entry function = (Map.Entry) each.next();
            List known = new ArrayList();
            known.add(Boolean.valueOf(order.found.contains(function.getKey()) && !order.lost.contains(function.getKey())));
            known.add(Boolean.valueOf(((Set) order.stages.get(function.getKey())).size() == 1));
            known.addAll((List) function.getValue());
            all.put(function.getKey(), known);
        }
        return all;
    }

    /** `stage` is the node at whose end the rows of the plan are handed on. */
    private void find(SparkPlan plan, Object stage, List unions) {
        List below = below(plan);
        Set uses = Columns.uses(plan);
        if (!uses.isEmpty()) {
            (areKept(below) ? found : lost).addAll(uses);
        }
        for (Iterator each = uses.iterator(); each.hasNext();) {
            Object token = each.next();
            boolean isOne = !sides.containsKey(token) || unions.equals(sides.get(token));
            sides.put(token, isOne ? unions : Collections.EMPTY_LIST);
            if (!stages.containsKey(token)) {
                stages.put(token, Collections.newSetFromMap(new IdentityHashMap()));
            }
            ((Set) stages.get(token)).add(stage);
        }
        if (plan instanceof InMemoryTableScanExec) {
            // A cache that is not filled yet may be by a job of its own.
            SparkPlan cached = ((InMemoryTableScanExec) plan).relation().cacheBuilder().cachedPlan();
            find(cached, cached, unions);
        }
        for (int i = 0; i < below.size(); i++) {
            List own = new ArrayList();
            if (!(plan instanceof Exchange)) {
                own.addAll(unions);
            }
            if (plan instanceof UnionExec) {
                own.add(Integer.valueOf(i));
                own.add(Integer.valueOf(below.size()));
            }
            find((SparkPlan) below.get(i), plan instanceof Exchange ? plan : stage, own);
        }
        for (Iterator each = CollectionConverters.asJava(plan.subqueries()).iterator(); each.hasNext();) {
            SparkPlan query = (SparkPlan) each.next();
            find(query, query, Collections.EMPTY_LIST);
        }
    }

    private static boolean areKept(List plans) {
        for (Iterator each = plans.iterator(); each.hasNext();) {
            if (!isKept((SparkPlan) each.next())) {
                return false;
            }
        }
        return true;
    }

    private static boolean isKept(SparkPlan plan) {
        if (plan instanceof InMemoryTableScanExec) {
            // However rows came into a cache, they lie there.
            return true;
        }
        if (plan instanceof RDDScanExec) {
            return !isShuffled(((RDDScanExec) plan).rdd(), new IdentityHashMap());
        }
        if (plan instanceof BaseAggregateExec && ((BaseAggregateExec) plan).groupingExpressions().isEmpty()) {
            // One row has no order.
            return true;
        }
        if (plan instanceof BroadcastHashJoinExec) {
            BroadcastHashJoinExec join = (BroadcastHashJoinExec) plan;
            return streamsTheSame(join.buildSide(), join.joinType())
                && (isAlone(join, false) || isKept(join.left())) && (isAlone(join, true) || isKept(join.right()));
        }
        if (plan instanceof BroadcastNestedLoopJoinExec) {
            BroadcastNestedLoopJoinExec join = (BroadcastNestedLoopJoinExec) plan;
            return streamsTheSame(join.buildSide(), join.joinType())
                && isKept(join.left()) && (isLooked(join.joinType()) || isKept(join.right()));
        }
        return KEEP.contains(plan.getClass().getSimpleName()) && areKept(below(plan));
    }

    /** Which side of a join is broadcast depends on what is read of each, if it may be either. */
    private static boolean streamsTheSame(BuildSide built, JoinType type) {
        return built.toString().equals("BuildRight") || isOne(type, "RightOuter");
    }

    /** Whether a side is broadcast and each row meets one of it at most, or shows none: then their order is nothing. */
    private static boolean isAlone(BroadcastHashJoinExec join, boolean isRight) {
        if (isRight == isOne(join.joinType(), "RightOuter")) {
            return false;
        }
        List keys = CollectionConverters.asJava(isRight ? join.rightKeys() : join.leftKeys());
        return isLooked(join.joinType()) || isUnique(isRight ? join.right() : join.left(), keys);
    }

    private static boolean isLooked(JoinType type) {
        return isOne(type, "LeftSemi") || isOne(type, "LeftAnti") || isOne(type, "ExistenceJoin");
    }

    private static boolean isOne(JoinType type, String name) {
        return type.toString().startsWith(name);
    }

    /** Whether no two rows have the same keys. */
    private static boolean isUnique(SparkPlan plan, List keys) {
        while (plan.logicalLink().isEmpty() && below(plan).size() == 1) {
            plan = (SparkPlan) below(plan).get(0);
        }
        if (plan.logicalLink().isEmpty()) {
            return false;
        }
        LogicalPlan logical = (LogicalPlan) plan.logicalLink().get();
        if (logical instanceof LogicalQueryStage) {
            logical = ((LogicalQueryStage) logical).logicalPlan();
        }
        for (Iterator sets = CollectionConverters.asJava(logical.distinctKeys()).iterator(); sets.hasNext();) {
            Iterator each = CollectionConverters.asJava(((ExpressionSet) sets.next()).iterator());
            boolean areAll = true;
            while (each.hasNext()) {
                areAll &= isAmong((Expression) each.next(), keys);
            }
            if (areAll) {
                return true;
            }
        }
        return false;
    }

    private static boolean isAmong(Expression expression, List keys) {
        for (Iterator each = keys.iterator(); each.hasNext();) {
            if (((Expression) each.next()).semanticEquals(expression)) {
                return true;
            }
        }
        return false;
    }

    /** Whether rows come by a shuffle and were not kept behind it. */
    private static boolean isShuffled(RDD rdd, Map seen) {
        if (seen.put(rdd, rdd) != null || rdd.getStorageLevel().isValid() || rdd.isCheckpointed()) {
            return false;
        }
        for (Iterator each = CollectionConverters.asJava(rdd.dependencies()).iterator(); each.hasNext();) {
            Dependency dependency = (Dependency) each.next();
            if (dependency instanceof ShuffleDependency || isShuffled(dependency.rdd(), seen)) {
                return true;
            }
        }
        return false;
    }

    /** What a node computes its rows of. */
    private static List below(SparkPlan plan) {
        List below = new ArrayList();
        if (plan instanceof AdaptiveSparkPlanExec) {
            below.add(((AdaptiveSparkPlanExec) plan).executedPlan());
        } else if (plan instanceof QueryStageExec) {
            below.add(((QueryStageExec) plan).plan());
        } else if (plan instanceof ReusedExchangeExec) {
            below.add(((ReusedExchangeExec) plan).child());
        } else if (plan instanceof ReusedSubqueryExec) {
            below.add(((ReusedSubqueryExec) plan).child());
        } else {
            below.addAll(CollectionConverters.asJava(plan.children()));
        }
        return below;
    }
}
