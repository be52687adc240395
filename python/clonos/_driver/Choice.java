package io.clonos;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DatetimeType;
import scala.Product;
import scala.collection.Seq;

/**
 * Which rows come to a function, by what the query says below it: the same in each query over one frame, whichever columns it
 * reads of its rows, and in each process.
 */
public class Choice extends Columns {
    /** Nodes that neither choose rows nor make any. */
    private static final Set LEAVE = new HashSet(Arrays.asList(new String[] {
        "Project", "SubqueryAlias", "View", "ResolvedHint", "UnresolvedHint", "CollectMetrics", "EventTimeWatermark",
        "ArrowEvalPython", "BatchEvalPython"
    }));
    /** Nodes that choose rows by their expressions alone, whatever else there is to read. */
    private static final Set BY_EXPRESSIONS = new HashSet(Arrays.asList(new String[] {
        "Filter", "Join", "LateralJoin", "Aggregate", "Generate", "Deduplicate", "DeduplicateWithinWatermark", "Sample",
        "Window", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Repartition", "RepartitionByExpression",
        "RebalancePartitions"
    }));
    /** Nodes with numbers that are others in each process. */
    private static final Set NUMBERED = new HashSet(Arrays.asList(new String[] {"UnionLoop"}));

    private final Functions functions;
    private final Sources sources;
    /** What was said of common tables: tables may be made of each other. */
    private final Map told = new HashMap();
    /** What was said, once for each function of a query that stands in several places. */
    private final Set found = new LinkedHashSet();
    /** What else is asked where the function is asked in a filter. */
    private final Set asked = new TreeSet();
    /** What is below functions over windows when Spark runs the query. */
    private final Set over = new LinkedHashSet();
    private boolean isOptimized;

    public Choice(Functions functions, Sources sources) {
        this.functions = functions;
        this.sources = sources;
    }

    /** What a plan says that stands below the function. */
    public void addPlace(List plans) {
        List all = new ArrayList(plans);
        Set entered = new HashSet();
        for (Iterator each = plans.iterator(); each.hasNext();) {
            addQueries((LogicalPlan) each.next(), all, entered);
        }
        addBelow(all);
        StringBuilder text = new StringBuilder();
        for (Iterator each = plans.iterator(); each.hasNext();) {
            say((LogicalPlan) each.next(), text);
        }
        found.add(text.toString().replaceAll("_gen_alias_[0-9]+", "_gen_alias"));
    }

    /** The same of a function that is asked in a filter: what else that asks Spark may ask below, of the rows or of a join. */
    public void addPlace(Filter filter, String token) {
        addPlace(list(filter.children()));
        addConditions(filter.condition(), token);
    }

    private void addConditions(Expression condition, String token) {
        if (condition instanceof And) {
            addConditions(((And) condition).left(), token);
            addConditions(((And) condition).right(), token);
        } else if (!asks(condition, token)) {
            asked.add(placed(condition));
        }
    }

    /**
     * What the optimizer lets through to a function over a window. A filter on the columns that it is partitioned by is asked
     * wherever below that is cheapest, so that whole groups do not come that come in a query without the filter.
     */
    public void addOptimized(LogicalPlan plan, String token) {
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            addOptimized((LogicalPlan) each.next(), token);
        }
        if (plan instanceof Window && uses(plan).contains(token)) {
            StringBuilder text = new StringBuilder();
            sources.keepOnly(((Window) plan).partitionSpec());
            isOptimized = true;
            say(((Window) plan).child(), text);
            isOptimized = false;
            sources.keepOnly(null);
            over.add(text.toString());
        }
    }

    /** Queries that stand in the expressions of a plan, wherever. */
    private void addQueries(LogicalPlan plan, List found, Set entered) {
        if (plan instanceof CTERelationRef) {
            CTERelationDef table = common((CTERelationRef) plan);
            if (table != null && entered.add(table)) {
                addQueries(table.child(), found, entered);
            }
        }
        for (Iterator each = list(plan.subqueries()).iterator(); each.hasNext();) {
            LogicalPlan query = (LogicalPlan) each.next();
            found.add(query);
            addQueries(query, found, entered);
        }
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            addQueries((LogicalPlan) each.next(), found, entered);
        }
    }

    private CTERelationDef common(CTERelationRef reference) {
        return (CTERelationDef) commons.get(Long.valueOf(reference.cteId()));
    }

    /**
     * A hash of so many bits; 0 if nothing was found. The highest is set if the function stands in several places of the query,
     * to which other rows come, unless one stage has them all: which of them a stage has is not told.
     */
    public long hash(int bits, boolean isInOneStage) throws NoSuchAlgorithmException {
        if (found.isEmpty()) {
            return 0L;
        }
        long several = !isInOneStage && (found.size() > 1 || over.size() > 1) ? 1L << (bits - 1) : 0L;
        String all = found.toString() + asked + over;
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(all.getBytes(StandardCharsets.UTF_8));
        long first = 0;
        for (int i = 0; i < 4; i++) {
            first = first << 8 | (digest[i] & 0xff);
        }
        return several | Math.max(first >>> (33 - bits), 1L);
    }

    private void say(LogicalPlan plan, StringBuilder text) {
        if (plan instanceof WithCTE) {
            say(((WithCTE) plan).plan(), text);
            return;
        }
        if (plan instanceof CTERelationRef) {
            sayCommon((CTERelationRef) plan, text);
            return;
        }
        List children = list(plan.children());
        String name = plan.getClass().getSimpleName();
        if (!LEAVE.contains(name)) {
            text.append(name);
            if (children.isEmpty()) {
                sources.say(plan, text);
            } else if (!NUMBERED.contains(name)) {
                sayParts((Product) plan, text);
            }
            Seq by = plan instanceof Aggregate ? ((Aggregate) plan).groupingExpressions() : plan.expressions();
            say(list(by), text);
            for (Iterator each = children.iterator(); !BY_EXPRESSIONS.contains(name) && each.hasNext();) {
                say(list(((LogicalPlan) each.next()).output()), text);
            }
        }
        text.append('(');
        for (Iterator each = children.iterator(); each.hasNext();) {
            say((LogicalPlan) each.next(), text);
            text.append(',');
        }
        text.append(')');
    }

    private void sayCommon(CTERelationRef reference, StringBuilder text) {
        CTERelationDef table = common(reference);
        if (table == null) {
            return;
        }
        Object known = told.get(table);
        if (known == null) {
            told.put(table, "itself");
            StringBuilder query = new StringBuilder();
            say(table.child(), query);
            known = digest(query.toString());
            told.put(table, known);
        }
        text.append("common ").append(known);
    }

    private void say(List expressions, StringBuilder text) {
        for (Iterator each = expressions.iterator(); each.hasNext();) {
            text.append('\n').append(placed((Expression) each.next()));
        }
    }

    public boolean isClock(DataType type) {
        return isOptimized && asksTime() && type instanceof DatetimeType;
    }

    public void sayFunction(PythonFunction function, StringBuilder text) {
        text.append(' ').append(functions.identity(function));
    }

    public void sayQuery(LogicalPlan query, StringBuilder text) {
        text.append(" of ");
        say(list(query.output()), text);
        say(query, text);
    }
}
