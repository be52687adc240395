package io.clonos;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.Dependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.Partition;
import org.apache.spark.Partitioner;
import org.apache.spark.RangePartitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.rdd.CoalescedRDDPartition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.plans.physical.RoundRobinPartitioning;
import org.apache.spark.sql.execution.CoalescedPartitionSpec;
import org.apache.spark.sql.execution.ShuffledRowRDD;
import org.apache.spark.sql.execution.ShuffledRowRDDPartition;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import scala.Product;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What decides which rows come to which task of a stage, as its RDDs have it: files and how they are packed, by what
 * rows were shuffled, which of those partitions each task reads.
 *
 * <p>A plan does not tell: with adaptive execution two queries over one frame may join it in other ways, or read
 * together other partitions of a shuffle, as they read other columns.
 */
public class Borders {
    /** Numbers of columns, which are others each time a query is made. */
    private static final Pattern NUMBERS = Pattern.compile("#([0-9]+)L?");
    /** What writers put into the names of files. */
    private static final Pattern RANDOM = Pattern.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");
    /** How many closures may lie in one another. */
    private static final int DEPTH_MAX = 4;

    private final MessageDigest digest;
    private final Map places = new IdentityHashMap();
    /** Columns of the query's plan, from its leaves up: of two that have one name they tell which it is. */
    private final Map columns = new HashMap();
    private boolean isKnown = true;
    /** Whether the plan reads an RDD, in which may be columns of another plan. */
    private boolean readsRdd;
    private boolean hasNumbered;
    private boolean hasOther;

    /** Of an RDD, and of the analysed plan of the query that it is computed for. */
    public Borders(Object rdd, Object plan) throws NoSuchAlgorithmException, IllegalAccessException {
        digest = MessageDigest.getInstance("SHA-256");
        number((LogicalPlan) plan);
        describe((RDD) rdd);
    }

    private void number(LogicalPlan plan) {
        readsRdd |= plan.nodeName().endsWith("RDD");
        for (Iterator each = list(plan.children()).iterator(); each.hasNext();) {
            number((LogicalPlan) each.next());
        }
        for (Iterator each = list(plan.output()).iterator(); each.hasNext();) {
            String column = Long.toString(((Attribute) each.next()).exprId().id());
            if (!columns.containsKey(column)) {
                columns.put(column, Integer.valueOf(columns.size()));
            }
        }
    }

    /** What Spark says, with columns as another query over the same frames has them. */
    private String numbered(Object said) {
        Matcher numbers = NUMBERS.matcher(said.toString());
        StringBuffer text = new StringBuffer();
        while (numbers.find()) {
            Object place = columns.get(numbers.group(1));
            hasNumbered |= place != null;
            hasOther |= place == null;
            // One that the optimizer has made stands in no plan.
            numbers.appendReplacement(text, place == null ? "" : "@" + place);
        }
        return numbers.appendTail(text).toString();
    }

    /**
     * A hash of 32 bits, of which the lowest is set if rows may be elsewhere though the hash is the same; less than
     * none if all shuffles are of another plan, whose RDD this one reads.
     */
    public long hash() {
        if (readsRdd && hasOther && !hasNumbered) {
            return -1L;
        }
        byte[] bytes = digest.digest();
        long hash = 0;
        for (int i = 0; i < 4; i++) {
            hash = hash << 8 | (bytes[i] & 0xff);
        }
        return isKnown ? hash & ~1L : hash | 1L;
    }

    private void describe(RDD rdd) throws IllegalAccessException {
        List dependencies = list(rdd.dependencies());
        while (dependencies.size() == 1 && dependencies.get(0) instanceof OneToOneDependency) {
            rdd = ((Dependency) dependencies.get(0)).rdd();
            dependencies = list(rdd.dependencies());
        }
        if (rdd.getClass().getSimpleName().endsWith("CartesianRDD")) {
            // Each of its tasks has one of each side: where one side has no more, the other says which.
            RDD left = ((Dependency) dependencies.get(0)).rdd();
            RDD right = ((Dependency) dependencies.get(1)).rdd();
            if (left.partitions().length == 1 || right.partitions().length == 1) {
                describe(right.partitions().length == 1 ? left : right);
                return;
            }
        }
        Object known = places.get(rdd);
        if (known != null) {
            say("again", known);
            return;
        }
        places.put(rdd, Integer.valueOf(places.size()));
        Partition[] partitions = rdd.partitions();
        say(rdd.getClass().getSimpleName(), Integer.valueOf(partitions.length));
        boolean isOfMaps = false;
        for (int i = 0; i < partitions.length; i++) {
            isOfMaps |= describe(partitions[i]);
        }
        say("of", Integer.valueOf(dependencies.size()));
        for (Iterator each = dependencies.iterator(); each.hasNext();) {
            Dependency dependency = (Dependency) each.next();
            if (dependency instanceof ShuffleDependency) {
                describe((ShuffleDependency) dependency, rdd instanceof ShuffledRowRDD, isOfMaps);
            } else {
                describe(dependency.rdd());
            }
        }
    }

    /** Whether which rows it has depends on which task wrote them. */
    private boolean describe(Partition partition) {
        if (partition instanceof ShuffledRowRDDPartition) {
            Product spec = (Product) ((ShuffledRowRDDPartition) partition).spec();
            say("reads", spec.productPrefix());
            for (int i = 0; i < spec.productArity(); i++) {
                // How large it is decides nothing more.
                if (!spec.productElementName(i).equals("dataSize")) {
                    say("at", spec.productElement(i));
                }
            }
            return !(spec instanceof CoalescedPartitionSpec);
        }
        if (partition instanceof CoalescedRDDPartition) {
            say("reads", Arrays.toString(((CoalescedRDDPartition) partition).parentsIndices()));
        } else if (partition instanceof FilePartition) {
            PartitionedFile[] files = ((FilePartition) partition).files();
            say("files", Integer.valueOf(files.length));
            for (int i = 0; i < files.length; i++) {
                say(name(files[i].filePath().toString()),
                    files[i].start() + "+" + files[i].length() + "/" + files[i].fileSize());
            }
        }
        return false;
    }

    /** A file's name in its table, below the folders of partitions, as whoever writes it again would call it. */
    private static String name(String path) {
        String[] parts = path.split("/");
        int first = parts.length - 1;
        while (first > 0 && parts[first - 1].indexOf('=') >= 0) {
            first--;
        }
        StringBuilder name = new StringBuilder();
        for (int i = first; i < parts.length; i++) {
            name.append('/').append(parts[i]);
        }
        return RANDOM.matcher(name).replaceAll("");
    }

    private void describe(ShuffleDependency shuffle, boolean isOfRows, boolean isOfMaps)
        throws IllegalAccessException {
        List made = new ArrayList();
        made.add(shuffle.partitioner());
        find(shuffle.rdd(), made, DEPTH_MAX);
        boolean isFound = !isOfRows;
        boolean deals = false;
        for (Iterator each = made.iterator(); each.hasNext();) {
            Object by = each.next();
            isFound |= by instanceof Partitioning;
            deals |= by instanceof RoundRobinPartitioning;
        }
        if (!isFound) {
            throw new IllegalStateException("by what rows are shuffled is not where it was");
        }
        for (Iterator each = made.iterator(); each.hasNext();) {
            Object by = each.next();
            if (by instanceof Seq && !deals) {
                continue;
            }
            if (by instanceof Partitioner) {
                say(by.getClass().getSimpleName(), Integer.valueOf(((Partitioner) by).numPartitions()));
            } else {
                say("by", numbered(by));
            }
            if (by instanceof RangePartitioner) {
                say("borders", bounds((RangePartitioner) by));
            }
        }
        if (deals || isOfMaps) {
            isKnown &= !deals;
            describe(shuffle.rdd());
        }
    }

    /** What closures of a shuffle's input have: by what it is cut, and, where that matters, its columns. */
    private static void find(Object holder, List found, int depth) throws IllegalAccessException {
        for (Class of = holder.getClass(); of != null && depth > 0; of = of.getSuperclass()) {
            Field[] fields = of.getDeclaredFields();
            for (int i = 0; i < fields.length; i++) {
                if (Modifier.isStatic(fields[i].getModifiers()) || fields[i].getType().isPrimitive()) {
                    continue;
                }
                fields[i].setAccessible(true);
                Object value = fields[i].get(holder);
                if (value instanceof Partitioner || value instanceof Partitioning || isOfColumns(value)) {
                    found.add(value);
                } else if (value != null && value.getClass().getName().indexOf("$$Lambda") >= 0) {
                    find(value, found, depth - 1);
                }
            }
        }
    }

    private static boolean isOfColumns(Object value) {
        return value instanceof Seq && !((Seq) value).isEmpty() && ((Seq) value).apply(0) instanceof Attribute;
    }

    /** Borders that were drawn from a sample. */
    private static Object bounds(RangePartitioner partitioner) throws IllegalAccessException {
        Field[] fields = RangePartitioner.class.getDeclaredFields();
        for (int i = 0; i < fields.length; i++) {
            if (fields[i].getName().endsWith("rangeBounds")) {
                fields[i].setAccessible(true);
                return Integer.valueOf(Arrays.deepHashCode(new Object[] {fields[i].get(partitioner)}));
            }
        }
        throw new IllegalStateException("no borders");
    }

    private void say(Object what, Object value) {
        digest.update((what + "\t" + value + "\n").getBytes(StandardCharsets.UTF_8));
    }

    private static List list(Seq elements) {
        return CollectionConverters.asJava(elements);
    }
}
