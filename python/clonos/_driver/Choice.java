package io.clonos;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.Product;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Which rows come to a function, by what the query says below it: the same in each query over one frame, whichever columns it
 * reads of its rows, and in each process.
 */
public class Choice {
    /** Nodes that neither choose rows nor make any. */
    private static final Set LEAVE = new HashSet(Arrays.asList(new String[] {
        "Project", "SubqueryAlias", "View", "ResolvedHint", "UnresolvedHint", "CollectMetrics", "EventTimeWatermark"
    }));
    /** Nodes that choose rows by their expressions alone, whatever else there is to read. */
    private static final Set BY_EXPRESSIONS = new HashSet(Arrays.asList(new String[] {
        "Filter", "Join", "LateralJoin", "Aggregate", "Generate", "Deduplicate", "DeduplicateWithinWatermark", "Sample",
        "Window", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Repartition", "RepartitionByExpression",
        "RebalancePartitions"
    }));
    /** Nodes with numbers that are others in each process. */
    private static final Set NUMBERED = new HashSet(Arrays.asList(new String[] {"UnionLoop"}));
    /** Rows of a table that a program has, of which it is told what they hold. */
    private static final int ROWS_MAX = 1_000;

    private final Columns columns = new Columns(true);
    /** Common tables, by their numbers. */
    private final Map commons = new HashMap();
    /** Those that were told, with the places where. */
    private final Map told = new HashMap();
    /** What was told, once for each function of a query that stands in several places. */
    private final Set found = new TreeSet();

    /** A common table, which stands in the plan once, wherever it is used. */
    public void addCommon(CTERelationDef table) {
        commons.put(Long.valueOf(table.id()), table);
        columns.addCommon(table);
    }

    /** What a plan says that stands below the function. */
    public void addBelow(List plans) {
        List all = new ArrayList();
        for (Iterator each = plans.iterator(); each.hasNext();) {
            addQueries((LogicalPlan) each.next(), all);
        }
        all.addAll(0, plans);
        columns.addBelow(all);
        told.clear();
        StringBuilder text = new StringBuilder();
        for (Iterator each = plans.iterator(); each.hasNext();) {
            say((LogicalPlan) each.next(), text);
        }
        found.add(text.toString().replaceAll("_gen_alias_[0-9]+", "_gen_alias"));
    }

    /** Queries that stand in the expressions of a plan, wherever. */
    private static void addQueries(LogicalPlan plan, List found) {
        for (Iterator each = list(plan.subqueries()).iterator(); each.hasNext();) {
            LogicalPlan query = (LogicalPlan) each.next();
            found.add(query);
            addQueries(query, found);
        }
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            addQueries((LogicalPlan) each.next(), found);
        }
    }

    /**
     * A hash of so many bits; 0 if nothing was found, and the greatest if the function stands in several places of the query,
     * to which other rows come: which of them a stage has is not told.
     */
    public long hash(int bits) throws NoSuchAlgorithmException {
        long several = (1L << bits) - 1;
        if (found.size() != 1) {
            return found.isEmpty() ? 0L : several;
        }
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(found.toString().getBytes(StandardCharsets.UTF_8));
        long first = 0;
        for (int i = 0; i < 4; i++) {
            first = first << 8 | (digest[i] & 0xff);
        }
        return Math.min(Math.max(first >>> (32 - bits), 1L), several - 1);
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
                saySource(plan, text);
            } else if (!NUMBERED.contains(name)) {
                sayParts(plan, text);
            }
            Seq by = plan instanceof Aggregate ? ((Aggregate) plan).groupingExpressions() : plan.expressions();
            say(list(by), text);
            for (Iterator each = children.iterator(); !BY_EXPRESSIONS.contains(name) && each.hasNext();) {
                say(list(((LogicalPlan) each.next()).output()), text);
            }
        } else {
            // Of a column that is computed by a query, what a filter above says of it does not tell which.
            for (Iterator each = list(plan.expressions()).iterator(); each.hasNext();) {
                sayQueries((Expression) each.next(), text);
            }
        }
        text.append('(');
        for (Iterator each = children.iterator(); each.hasNext();) {
            say((LogicalPlan) each.next(), text);
            text.append(',');
        }
        text.append(')');
    }

    /** A common table is told once, however often it is used: tables may be made of each other. */
    private void sayCommon(CTERelationRef reference, StringBuilder text) {
        Long id = Long.valueOf(reference.cteId());
        CTERelationDef table = (CTERelationDef) commons.get(id);
        Object before = told.get(id);
        if (table == null || before != null) {
            text.append("common ").append(before);
            return;
        }
        told.put(id, Integer.valueOf(told.size()));
        say(table.child(), text);
    }

    private void say(List expressions, StringBuilder text) {
        for (Iterator each = expressions.iterator(); each.hasNext();) {
            Expression expression = (Expression) each.next();
            text.append('\n').append(columns.placed(expression));
            sayQueries(expression, text);
        }
    }

    /** Queries that stand in an expression. */
    private void sayQueries(Expression expression, StringBuilder text) {
        if (expression instanceof SubqueryExpression) {
            LogicalPlan query = (LogicalPlan) ((SubqueryExpression) expression).plan();
            text.append(" of ");
            say(list(query.output()), text);
            say(query, text);
        }
        for (Iterator each = list(expression.children()).iterator(); each.hasNext();) {
            sayQueries((Expression) each.next(), text);
        }
    }

    private static void sayParts(LogicalPlan plan, StringBuilder text) {
        Product parts = (Product) plan;
        for (int i = 0; i < parts.productArity(); i++) {
            Object part = parts.productElement(i);
            text.append(' ');
            if (part instanceof JoinType) {
                text.append(part.getClass().getSimpleName());
            } else {
                Columns.sayPart(part, text);
            }
        }
    }

    /** Of a source, what tells it from others and is not where it lies. */
    private static void saySource(LogicalPlan plan, StringBuilder text) {
        if (plan instanceof LocalRelation) {
            List rows = list(((LocalRelation) plan).data());
            text.append(' ').append(rows.size());
            for (int i = 0; i < Math.min(rows.size(), ROWS_MAX); i++) {
                text.append(' ').append(rows.get(i).hashCode());
            }
        } else if (plan instanceof Range) {
            sayParts(plan, text);
        } else if (plan instanceof DataSourceV2Relation) {
            text.append(' ').append(((DataSourceV2Relation) plan).table().name());
        } else if (plan instanceof LogicalRelation) {
            Object relation = ((LogicalRelation) plan).relation();
            text.append(' ').append(relation.toString().replaceAll("@[0-9a-f]+", ""));
            if (relation instanceof HadoopFsRelation) {
                text.append(' ').append(((HadoopFsRelation) relation).sizeInBytes());
                Seq roots = ((HadoopFsRelation) relation).location().rootPaths();
                for (Iterator each = list(roots).iterator(); each.hasNext();) {
                    text.append(' ').append(Columns.RANDOM.matcher(((Path) each.next()).getName()).replaceAll(""));
                }
            }
        }
    }

    private static List list(Seq elements) {
        return CollectionConverters.asJava(elements);
    }
}
