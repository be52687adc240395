package io.clonos;

import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.scheduler.LiveListenerBus;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart;

/**
 * Keeps the plans of the last few {@code toLocalIterator}. Such an execution ends before its first job, or before its
 * last, and Spark forgets the plan of an execution at its end. {@code local_iterators.py} compiles it with the compiler
 * that Spark compiles queries with, which knows no generics, lambdas or loops over iterables.
 */
public class LocalIterators extends SparkListener {
    private static final String METHOD = ".Dataset.toPythonIterator(";
    private static final int KEPT = 16;

    private final LiveListenerBus bus;
    /** Executions that are not over. */
    private final Set begun = new HashSet();
    /** What has ended, the oldest first. */
    private final Map ended = new LinkedHashMap();

    public LocalIterators(LiveListenerBus bus) {
        this.bus = bus;
    }

    public synchronized void onOtherEvent(SparkListenerEvent event) {
        if (event instanceof SparkListenerSQLExecutionStart) {
            SparkListenerSQLExecutionStart start = (SparkListenerSQLExecutionStart) event;
            if (start.details().contains(METHOD)) {
                begun.add(Long.valueOf(start.executionId()));
            }
        } else if (event instanceof SparkListenerSQLExecutionEnd) {
            SparkListenerSQLExecutionEnd end = (SparkListenerSQLExecutionEnd) event;
            Long execution = Long.valueOf(end.executionId());
            if (begun.remove(execution) && end.qe() != null) {
                keep(execution, end.qe());
            }
        } else if (event instanceof Mark) {
            ((Mark) event).isHeard = true;
            notifyAll();
        }
    }

    private void keep(Long execution, QueryExecution query) {
        ended.put(execution, new Ended(query.analyzed(), query.optimizedPlan(), Order.of(query.executedPlan())));
        if (ended.size() > KEPT) {
            Iterator oldest = ended.keySet().iterator();
            oldest.next();
            oldest.remove();
        }
    }

    /** The plan of an execution that is over, as its jobs ask for it; null if there is none, or nobody can tell in time. */
    public Ended find(long execution, long millis) throws InterruptedException {
        // Spark tells of what happens in order, and later: all that was before this is known with it.
        Mark mark = new Mark();
        bus.post(mark);
        long until = System.nanoTime() + millis * 1000000L;
        synchronized (this) {
            while (!mark.isHeard) {
                long left = (until - System.nanoTime()) / 1000000L;
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            return (Ended) ended.get(Long.valueOf(execution));
        }
    }

    /** What is looked at of a query: no more of it is kept from being cleaned up. */
    public static class Ended {
        private final LogicalPlan analyzed;
        private final LogicalPlan optimized;
        private final Map order;

        Ended(LogicalPlan analyzed, LogicalPlan optimized, Map order) {
            this.analyzed = analyzed;
            this.optimized = optimized;
            this.order = order;
        }

        public LogicalPlan analyzed() {
            return analyzed;
        }

        public LogicalPlan optimizedPlan() {
            return optimized;
        }

        /** What {@link Order} says of the plan that Spark has run. */
        public Map order() {
            return order;
        }
    }

    /** Stands among Spark's own events, and in no log of them. */
    private static class Mark implements SparkListenerEvent {
        boolean isHeard;

        public boolean logEvent() {
            return false;
        }
    }
}
