package io.clonos;

import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import scala.Option;

/** What {@link Borders} finds of stages that run, for Python, to which each question is a request to this process. */
public class Cuts {
    /** Stands for plans of a query that is over, which Python may have kept. */
    public static final String OVER = "over";

    private final scala.collection.Map stages;
    private final Object identities;

    /** Of Spark's stages, by their numbers; `identities` is that of {@link Functions}. */
    public Cuts(Object stages, Object identities) {
        this.stages = (scala.collection.Map) stages;
        this.identities = identities;
    }

    /**
     * Of a use in a stage, and of the execution that it is in and that one's root, or -1. As {@link Borders#hash} has it,
     * followed by what {@link Borders#side} has, if anything; or {@link #OVER} if an execution has ended; or the functions
     * that Python is to be asked for, after which this is to be asked again; or null if Spark has forgotten the stage.
     */
    public Object of(int stage, String token, long execution, long root, Object met) throws Exception {
        QueryExecution query = execution < 0 ? null : SQLExecution.getQueryExecution(execution);
        QueryExecution above = root < 0 ? null : SQLExecution.getQueryExecution(root);
        if ((query == null && execution >= 0) || (above == null && root >= 0)) {
            return OVER;
        }
        Object analyzed = above == null ? null : above.analyzed();
        if (query == null) {
            return of(stage, token, null, null, null, analyzed, met);
        }
        return of(stage, token, query.analyzed(), query.optimizedPlan(), query.executedPlan(), analyzed, met);
    }

    /** The same of plans, of which the third may be what {@link Order} said of it. */
    public Object of(
        int stage, String token, Object plan, Object optimized, Object physical, Object root, Object met)
        throws Exception {
        Option found = stages.get(Integer.valueOf(stage));
        if (found.isEmpty()) {
            return null;
        }
        RDD rdd = ((Stage) found.get()).rdd();
        Borders borders = new Borders(rdd, token, plan, optimized, physical, root, identities, met);
        if (!borders.unknown().isEmpty()) {
            return borders.unknown();
        }
        int[] side = borders.side();
        return borders.hash() + (side == null ? "" : " " + side[0] + " " + side[1]);
    }
}
