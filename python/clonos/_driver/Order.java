package io.clonos;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.optimizer.BuildSide;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.adaptive.QueryStageExec;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.joins.BroadcastHashJoinExec;
import org.apache.spark.sql.execution.joins.BroadcastNestedLoopJoinExec;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Whether rows come to a function in the order of what they are read from, whichever of their columns a query reads, as the plan
 * says that Spark runs: behind a shuffle they come in another one each time.
 */
public class Order {
    /** Nodes that leave rows in the order of their input, which is that of their first child. */
    private static final Set KEEP = new HashSet(Arrays.asList(new String[] {
        "WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec", "RowToColumnarExec", "AdaptiveSparkPlanExec",
        "BroadcastQueryStageExec", "TableCacheQueryStageExec", "ReusedExchangeExec", "BroadcastExchangeExec",
        "BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec", "ProjectExec", "FilterExec", "LocalLimitExec", "UnionExec",
        "GenerateExec", "ExpandExec", "SampleExec", "CoalesceExec", "CollectMetricsExec", "EventTimeWatermarkExec",
        "ArrowEvalPythonExec", "BatchEvalPythonExec", "MapInPandasExec", "MapInArrowExec", "PythonMapInArrowExec",
        "DeserializeToObjectExec", "SerializeFromObjectExec", "MapPartitionsExec", "MapElementsExec",
        "RangeExec", "LocalTableScanExec", "OneRowRelationExec", "FileSourceScanExec", "RowDataSourceScanExec",
        "BatchScanExec", "MicroBatchScanExec", "HiveTableScanExec"
    }));

    private final String token;
    private boolean isFound;
    private boolean isLost;

    /** Of the plan of a query, or null, and the token of a use. */
    public Order(String token, Object plan) {
        this.token = token;
        if (plan != null) {
            find((SparkPlan) plan);
        }
    }

    /** Whether it is so, wherever in the plan the function is. */
    public boolean holds() {
        return isFound && !isLost;
    }

    private void find(SparkPlan plan) {
        List below = below(plan);
        if (Columns.areOf(token, plan)) {
            isFound = true;
            isLost |= !areKept(below);
        }
        for (Iterator each = below.iterator(); each.hasNext();) {
            find((SparkPlan) each.next());
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
            RDD rdd = ((RDDScanExec) plan).rdd();
            return rdd.getStorageLevel().isValid() || rdd.isCheckpointed() || !Changing.isShuffled(rdd);
        }
        // Which side is broadcast depends on what is read of each; the rows of the other come in their order.
        BuildSide built = plan instanceof BroadcastHashJoinExec ? ((BroadcastHashJoinExec) plan).buildSide()
            : plan instanceof BroadcastNestedLoopJoinExec ? ((BroadcastNestedLoopJoinExec) plan).buildSide() : null;
        return KEEP.contains(plan.getClass().getSimpleName())
            && (built == null || built.toString().equals("BuildRight")) && areKept(below(plan));
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
        } else {
            below.addAll(CollectionConverters.asJava(plan.children()));
        }
        return below;
    }
}
