package io.clonos;

import java.util.Iterator;
import org.apache.spark.Dependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.rdd.RDD;
import org.apache.spark.rdd.UnionRDD;
import scala.collection.Seq;

/**
 * The side of a union that a function stands in. Tasks of a union are those of its sides, one after the other: the first of a
 * side computes what the first of that side alone would. If sides are cut alike, a task computes a part of each.
 */
public class Sides {
    private RDD rdd;
    private int first;
    private boolean isOne;

    /** Goes from what the tasks of a stage compute down to a side, by what {@link Order} says of the unions on the way. */
    public Sides(RDD stage, Iterator unions) {
        RDD below = stage;
        int before = 0;
        boolean isFound = unions.hasNext();
        while (isFound && unions.hasNext()) {
            int side = ((Integer) unions.next()).intValue();
            int count = ((Integer) unions.next()).intValue();
            while (below.dependencies().size() == 1 && below.dependencies().apply(0) instanceof OneToOneDependency) {
                below = ((OneToOneDependency) below.dependencies().apply(0)).rdd();
            }
            Seq dependencies = below.dependencies();
            // Spark leaves out sides without tasks.
            isFound = (below instanceof UnionRDD || joinsTasks(below)) && dependencies.size() == count;
            if (isFound) {
                for (int i = 0; i < side && !joinsTasks(below); i++) {
                    before += ((Dependency) dependencies.apply(i)).rdd().partitions().length;
                }
                below = ((Dependency) dependencies.apply(side)).rdd();
            }
        }
        isOne = isFound;
        rdd = isFound ? below : stage;
        first = isFound ? before : 0;
    }

    /** Whether a task computes a part of each side of a union, as sides that are cut alike have it. */
    public static boolean joinsTasks(RDD union) {
        return union.getClass().getSimpleName().endsWith("AwareUnionRDD");
    }

    /** Whether the function stands in one side. */
    public boolean isOne() {
        return isOne;
    }

    /** What the tasks of the side compute, or of the stage if there is none. */
    public RDD rdd() {
        return rdd;
    }

    /** The first task of the stage that computes the side. */
    public int first() {
        return first;
    }
}
