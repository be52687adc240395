package io.clonos;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import scala.Product;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Which rows come to a function, by what the query says below it: the same in each query over one frame, whichever columns it
 * reads of its rows, and in each process. Of what a source has, its borders are told.
 */
public class Choice {
    /** Nodes that neither choose rows nor make any. */
    private static final Set LEAVE = new HashSet(Arrays.asList(new String[] {
        "Project", "SubqueryAlias", "View", "ResolvedHint", "UnresolvedHint", "Repartition", "RepartitionByExpression",
        "RebalancePartitions", "CollectMetrics", "EventTimeWatermark"
    }));
    /** Nodes that choose rows by all of their columns, or have numbers that are others in each process. */
    private static final Set BY_COLUMNS = new HashSet(Arrays.asList(new String[] {
        "Distinct", "Except", "Intersect"
    }));
    private static final Set NUMBERED = new HashSet(Arrays.asList(new String[] {"UnionLoop", "UnionLoopRef"}));

    private final Columns columns;
    /** Common tables, by their numbers. */
    private final Map commons = new HashMap();
    /** Those that were told, with the places where. */
    private final Map told = new HashMap();
    /** What was told, once for each function of a query that stands in several places. */
    private final Set found = new TreeSet();

    public Choice(Columns columns) {
        this.columns = columns;
    }

    /** A common table, which stands in the plan once, wherever it is used. */
    public void addCommon(CTERelationDef table) {
        commons.put(Long.valueOf(table.id()), table);
    }

    /** What a plan says that stands below the function. */
    public void addBelow(List plans) {
        told.clear();
        StringBuilder text = new StringBuilder();
        for (Iterator each = plans.iterator(); each.hasNext();) {
            say((LogicalPlan) each.next(), text);
        }
        found.add(text.toString().replaceAll("_gen_alias_[0-9]+", "_gen_alias"));
    }

    /** A hash of so many bits; 0 if nothing was found. */
    public long hash(int bits) throws NoSuchAlgorithmException {
        if (found.isEmpty()) {
            return 0;
        }
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(found.toString().getBytes(StandardCharsets.UTF_8));
        long first = 0;
        for (int i = 0; i < 4; i++) {
            first = first << 8 | (digest[i] & 0xff);
        }
        return Math.max(first >>> (32 - bits), 1L);
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
        String name = plan.getClass().getSimpleName();
        if (!LEAVE.contains(name)) {
            text.append(name);
            if (!NUMBERED.contains(name)) {
                sayParts(plan, text);
            }
            if (BY_COLUMNS.contains(name)) {
                sayNames(list(plan.output()), text);
            }
            if (plan instanceof LocalRelation) {
                text.append(' ').append(((LocalRelation) plan).data().size());
            }
            Seq by = plan instanceof Aggregate ? ((Aggregate) plan).groupingExpressions() : plan.expressions();
            for (Iterator each = list(by).iterator(); each.hasNext();) {
                text.append('\n');
                say((Expression) each.next(), text);
            }
        }
        text.append('(');
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
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

    private void say(Expression expression, StringBuilder text) {
        text.append(columns.named(expression));
        sayQueries(expression, text);
    }

    /** Queries that stand in an expression. */
    private void sayQueries(Expression expression, StringBuilder text) {
        if (expression instanceof SubqueryExpression) {
            text.append(" of ");
            say((LogicalPlan) ((SubqueryExpression) expression).plan(), text);
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

    private static void sayNames(List output, StringBuilder text) {
        for (Iterator each = output.iterator(); each.hasNext();) {
            text.append(' ').append(((Attribute) each.next()).name());
        }
    }

    private static List list(Seq elements) {
        return CollectionConverters.asJava(elements);
    }
}
