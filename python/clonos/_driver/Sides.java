package io.clonos;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.Dependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.rdd.RDD;
import org.apache.spark.rdd.UnionRDD;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The side of a union that a function stands in. Tasks of a union are those of its sides, one after the other: the first of a
 * side computes what the first of that side alone would. If sides are cut alike, a task computes a part of each.
 */
public class Sides {
    /** How deep closures hold each other. */
    private static final int DEPTH = 4;

    private final String token;
    private final RDD stage;
    private RDD rdd;
    private int first;
    private boolean isOne;

    /**
     * Goes from what the tasks of a stage compute down to a side, by what {@link Order} says of the unions on the way; null for
     * rows of an RDD, whose closures are looked at.
     */
    public Sides(RDD stage, Iterator unions, String token) {
        this.token = token;
        this.stage = stage;
        rdd = stage;
        if (unions == null) {
            search();
        } else {
            while (unions.hasNext()) {
                int side = ((Integer) unions.next()).intValue();
                // Spark leaves out sides without tasks.
                if (!isUnion() || rdd.dependencies().size() != ((Integer) unions.next()).intValue()) {
                    giveUp();
                    return;
                }
                enter(side);
            }
        }
    }

    private void search() {
        while (isUnion()) {
            List found = new ArrayList();
            for (int i = 0; i < rdd.dependencies().size(); i++) {
                if (holds(side(i), new IdentityHashMap())) {
                    found.add(Integer.valueOf(i));
                }
            }
            if (found.size() != 1) {
                if (!found.isEmpty()) {
                    giveUp();
                }
                return;
            }
            enter(((Integer) found.get(0)).intValue());
        }
    }

    /** Goes down to the next union, if one is there that tasks compute side by side. */
    private boolean isUnion() {
        RDD below = rdd;
        while (below.dependencies().size() == 1 && below.dependencies().apply(0) instanceof OneToOneDependency) {
            below = ((Dependency) below.dependencies().apply(0)).rdd();
        }
        boolean isFound = below instanceof UnionRDD || joinsTasks(below);
        rdd = isFound ? below : rdd;
        return isFound;
    }

    private void enter(int side) {
        for (int i = 0; i < side && !joinsTasks(rdd); i++) {
            first += side(i).partitions().length;
        }
        rdd = side(side);
        isOne = true;
    }

    private void giveUp() {
        rdd = stage;
        first = 0;
        isOne = false;
    }

    private RDD side(int i) {
        return ((Dependency) rdd.dependencies().apply(i)).rdd();
    }

    /** Whether the function is in what is computed in the same tasks. */
    private boolean holds(RDD rdd, Map seen) {
        if (seen.put(rdd, rdd) != null) {
            return false;
        }
        if (holds(rdd, RDD.class, DEPTH)) {
            return true;
        }
        for (Iterator each = list(rdd.dependencies()).iterator(); each.hasNext();) {
            Dependency dependency = (Dependency) each.next();
            if (!(dependency instanceof ShuffleDependency) && holds(dependency.rdd(), seen)) {
                return true;
            }
        }
        return false;
    }

    private boolean holds(Object holder, Class until, int depth) {
        for (Class of = holder.getClass(); of != null && of != until && depth > 0; of = of.getSuperclass()) {
            Field[] fields = of.getDeclaredFields();
            for (int i = 0; i < fields.length; i++) {
                if (!Modifier.isStatic(fields[i].getModifiers()) && !fields[i].getType().isPrimitive()
                    && isOrHolds(value(fields[i], holder), depth)) {
                    return true;
                }
            }
        }
        return false;
    }

    private boolean isOrHolds(Object value, int depth) {
        if (value instanceof SparkPlan) {
            return Columns.uses((SparkPlan) value).contains(token);
        }
        if (value instanceof Seq && !((Seq) value).isEmpty() && ((Seq) value).apply(0) instanceof Expression) {
            for (Iterator each = list((Seq) value).iterator(); each.hasNext();) {
                if (Columns.asks((Expression) each.next(), token)) {
                    return true;
                }
            }
            return false;
        }
        String name = value == null ? "" : value.getClass().getName();
        return (name.indexOf("$$Lambda") >= 0 || name.endsWith("EvaluatorFactory")) && holds(value, Object.class, depth - 1);
    }

    private static Object value(Field field, Object holder) {
        try {
            field.setAccessible(true);
            return field.get(holder);
        } catch (IllegalAccessException error) {
            return null;
        }
    }

    /** Whether a task computes a part of each side of a union, as sides that are cut alike have it. */
    public static boolean joinsTasks(RDD union) {
        return union.getClass().getSimpleName().endsWith("AwareUnionRDD");
    }

    /** Whether the function stands in one side, and it is known which of the tasks compute that. */
    public boolean isOne() {
        return isOne;
    }

    /** What the tasks of the side compute, or of the stage if there is none. */
    public RDD rdd() {
        return isOne ? rdd : stage;
    }

    /** The first task of the stage that computes the side. */
    public int first() {
        return first;
    }

    private static List list(Seq elements) {
        return CollectionConverters.asJava(elements);
    }
}
