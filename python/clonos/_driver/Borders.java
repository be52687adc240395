package io.clonos;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.Dependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.Partition;
import org.apache.spark.Partitioner;
import org.apache.spark.RangePartitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.rdd.CoalescedRDDPartition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.plans.physical.RoundRobinPartitioning;
import org.apache.spark.sql.execution.CoalescedPartitionSpec;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.ShuffledRowRDD;
import org.apache.spark.sql.execution.ShuffledRowRDDPartition;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import scala.Product;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What decides which rows of a function come to which task of a stage, as its RDDs have it: files and how they are
 * packed, by what rows were shuffled, which of those partitions each task reads.
 *
 * <p>A plan does not tell: with adaptive execution two queries over one frame may join it in other ways, or read
 * together other partitions of a shuffle, as they read other columns. It does tell which of two columns of one name is
 * meant, by what they are made of below the function, which is the same whatever else a query has: see {@code Columns}.
 */
public class Borders {
    /** How many closures may lie in one another. */
    private static final int DEPTH_MAX = 4;

    /** By the names of columns. */
    private final MessageDigest named;
    /** By what they are made of, too. */
    private final MessageDigest placed;
    private final Map known = new IdentityHashMap();
    /** What {@link #cut} has found, by RDD. */
    private final Map cuts = new IdentityHashMap();
    private final Columns columns = new Columns();
    private final Functions functions;
    private final Choice choice;
    /** Checkpoints that a plan reads. */
    private final Map kept = new IdentityHashMap();
    private final String token;
    private final boolean isInOrder;
    private final boolean isInOneStage;
    private final Sides side;
    private boolean isFound;
    private boolean deals;

    /**
     * Of the RDD of a stage, of a function by the token of its use, and of the queries in whose plans it may be: this one,
     * and the one that it is a part of. A job over a frame's RDD is of none. Of a query that is over there is no physical
     * plan, but what {@link Order} says of it. `identities` is that of {@link Functions}, `met` that of {@link Sources}.
     */
    public Borders(
        Object rdd, Object token, Object plan, Object optimized, Object physical, Object root, Object identities, Object met)
        throws NoSuchAlgorithmException, IllegalAccessException {
        named = MessageDigest.getInstance("SHA-256");
        placed = MessageDigest.getInstance("SHA-256");
        functions = new Functions((Map) identities);
        choice = new Choice(functions, new Sources(functions, (Map) met));
        this.token = token.toString();
        findShared((LogicalPlan) plan);
        findShared((LogicalPlan) root);
        find((LogicalPlan) plan, true);
        // What a command writes stands in its own plan, too, as it was planned there.
        find((LogicalPlan) root, !isFound);
        if (optimized != null) {
            columns.addOptimized((LogicalPlan) optimized);
            ((Columns) choice).addOptimized((LogicalPlan) optimized);
            choice.addOptimized((LogicalPlan) optimized, this.token);
        }
        List order = (List) (physical instanceof Map ? (Map) physical : Order.of(physical)).get(this.token);
        Iterator known = (order == null ? Collections.EMPTY_LIST : order).iterator();
        isInOrder = known.hasNext() && ((Boolean) known.next()).booleanValue();
        isInOneStage = known.hasNext() && ((Boolean) known.next()).booleanValue();
        side = new Sides((RDD) rdd, order == null ? null : known, this.token);
        if (!side.isOne() && order != null && order.size() > 2) {
            // As far as it is known in which side of a union it stands, but not which of the tasks compute that.
            say("in", order.subList(2, order.size()));
        }
        describe(side.rdd());
    }

    /** Looks at what a plan reads that it does not say how to compute, or says elsewhere. */
    private void findShared(LogicalPlan plan) {
        if (plan == null) {
            return;
        }
        if (plan instanceof CTERelationDef) {
            columns.addCommon((CTERelationDef) plan);
            choice.addCommon((CTERelationDef) plan);
        } else if (plan instanceof LogicalRDD && ((LogicalRDD) plan).rdd().checkpointData().isDefined()) {
            kept.put(((LogicalRDD) plan).rdd(), plan);
        }
        for (Iterator each = plans(plan).iterator(); each.hasNext();) {
            findShared((LogicalPlan) each.next());
        }
    }

    /** Plans that stand in a plan. */
    private static List plans(LogicalPlan plan) {
        List found = new ArrayList(list(plan.children()));
        for (Iterator each = list(plan.innerChildren()).iterator(); each.hasNext();) {
            Object inner = each.next();
            if (inner instanceof LogicalPlan) {
                found.add(inner);
            }
        }
        return found;
    }

    /** Looks at the columns below the function, wherever in a plan it is. */
    private void find(LogicalPlan plan, boolean isOwn) {
        if (plan == null) {
            return;
        }
        if (Columns.uses(plan).contains(token)) {
            columns.addBelow(list(plan.children()));
            if (isOwn && plan instanceof Filter) {
                choice.addPlace((Filter) plan, token);
            } else if (isOwn) {
                choice.addPlace(list(plan.children()));
            }
            isFound = true;
        }
        for (Iterator each = plans(plan).iterator(); each.hasNext();) {
            find((LogicalPlan) each.next(), isOwn);
        }
    }

    /**
     * In the lowest bit whether rows may be elsewhere though all hashes are the same, in the next whether they come in the
     * order of their source. The 15 bits above are of the rows' choice, the next 15 a hash in which columns have their names
     * alone, as in each query over the frame; the upper half is one in which they have what they are made of, or 0 if that is
     * not known of some: it is of an RDD that this plan reads.
     */
    public long hash() throws NoSuchAlgorithmException {
        long names = Math.max(first(named) >>> 17, 1L);
        long places = columns.areAllPlaced() ? Math.max(first(placed), 1L) : 0L;
        long bits = (isInOrder ? 2L : 0L) | (deals || !columns.areAllPlaced() ? 1L : 0L);
        return places << 32 | names << 17 | choice.hash(15, isInOneStage) << 2 | bits;
    }

    /** The first task of the stage that computes the side of a union that this is of, and how many do; null if it is of all. */
    public int[] side() {
        return side.isOne() ? new int[] {side.first(), side.rdd().partitions().length} : null;
    }

    /** Functions that Python is to be asked for, after which this is to be made again. */
    public Map unknown() {
        return functions.unknown();
    }

    /** The first 32 bits. */
    private static long first(MessageDigest digest) {
        byte[] bytes = digest.digest();
        long first = 0;
        for (int i = 0; i < 4; i++) {
            first = first << 8 | (bytes[i] & 0xff);
        }
        return first;
    }

    private void describe(RDD rdd) throws IllegalAccessException {
        List dependencies = list(rdd.dependencies());
        // A function in several sides of a union that a task computes together has the rows of all there.
        while (!isKept(rdd) && !Sides.joinsTasks(rdd) && isOneToOne(dependencies)
            && (dependencies.size() == 1 || areOfOneCut(dependencies))) {
            rdd = ((Dependency) dependencies.get(0)).rdd();
            dependencies = list(rdd.dependencies());
        }
        if (isKept(rdd)) {
            say("kept", Integer.valueOf(rdd.partitions().length));
            return;
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
        Object again = known.get(rdd);
        if (again != null) {
            say("again", again);
            return;
        }
        known.put(rdd, Integer.valueOf(known.size()));
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

    /** Whether the function reads rows that are kept, or will be once they were computed, however they came there. */
    private boolean isKept(RDD rdd) {
        return isFound && kept.containsKey(rdd);
    }

    private static boolean isOneToOne(List dependencies) {
        for (Iterator each = dependencies.iterator(); each.hasNext();) {
            if (!(each.next() instanceof OneToOneDependency)) {
                return false;
            }
        }
        return !dependencies.isEmpty();
    }

    /**
     * Whether tasks read the same partitions of shuffles by a hash: a row is where its key's is, on whichever side of
     * a join, and also in a query that leaves the other sides out.
     */
    private boolean areOfOneCut(List dependencies) throws IllegalAccessException {
        return cut(dependencies) != null;
    }

    /** Which partitions of shuffles by a hash the tasks read, if they read the same of all. */
    private String cut(List dependencies) throws IllegalAccessException {
        String cut = null;
        for (Iterator each = dependencies.iterator(); each.hasNext();) {
            String found = cut(((Dependency) each.next()).rdd());
            if (found == null || (cut != null && !cut.equals(found))) {
                return null;
            }
            cut = found;
        }
        return cut;
    }

    private String cut(RDD rdd) throws IllegalAccessException {
        // Thirty joins may stand in one another, and each is asked about on the way to the one below.
        if (!cuts.containsKey(rdd)) {
            cuts.put(rdd, found(rdd));
        }
        return (String) cuts.get(rdd);
    }

    private String found(RDD rdd) throws IllegalAccessException {
        List dependencies = list(rdd.dependencies());
        while (isOneToOne(dependencies) && dependencies.size() == 1) {
            rdd = ((Dependency) dependencies.get(0)).rdd();
            dependencies = list(rdd.dependencies());
        }
        if (isOneToOne(dependencies)) {
            return cut(dependencies);
        }
        if (!(rdd instanceof ShuffledRowRDD)) {
            return null;
        }
        List made = new ArrayList();
        find(((ShuffleDependency) dependencies.get(0)).rdd(), made, DEPTH_MAX);
        boolean isHashed = false;
        for (Iterator each = made.iterator(); each.hasNext();) {
            isHashed |= each.next() instanceof HashPartitioning;
        }
        StringBuilder cut = new StringBuilder();
        Partition[] partitions = rdd.partitions();
        for (int i = 0; isHashed && i < partitions.length; i++) {
            Object spec = ((ShuffledRowRDDPartition) partitions[i]).spec();
            isHashed = spec instanceof CoalescedPartitionSpec;
            cut.append(at(spec)).append(' ');
        }
        cut.append(((ShuffleDependency) dependencies.get(0)).partitioner().numPartitions());
        return isHashed ? cut.toString() : null;
    }

    /** What a task reads of a shuffle. How large that is decides nothing more. */
    private static String at(Object of) {
        Product spec = (Product) of;
        StringBuilder text = new StringBuilder(spec.productPrefix());
        for (int i = 0; i < spec.productArity(); i++) {
            if (!spec.productElementName(i).equals("dataSize")) {
                text.append(' ').append(spec.productElement(i));
            }
        }
        return text.toString();
    }

    /** Whether which rows it has depends on which task wrote them. */
    private boolean describe(Partition partition) {
        if (partition instanceof ShuffledRowRDDPartition) {
            Object spec = ((ShuffledRowRDDPartition) partition).spec();
            say("reads", at(spec));
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
        return Sources.RANDOM.matcher(name).replaceAll("");
    }

    private void describe(ShuffleDependency shuffle, boolean isOfRows, boolean isOfMaps)
        throws IllegalAccessException {
        List made = new ArrayList();
        made.add(shuffle.partitioner());
        find(shuffle.rdd(), made, DEPTH_MAX);
        boolean isFound = !isOfRows;
        boolean isDealt = false;
        for (Iterator each = made.iterator(); each.hasNext();) {
            Object by = each.next();
            isFound |= by instanceof Partitioning;
            isDealt |= by instanceof RoundRobinPartitioning;
        }
        if (!isFound) {
            throw new IllegalStateException("by what rows are shuffled is not where it was");
        }
        for (Iterator each = made.iterator(); each.hasNext();) {
            Object by = each.next();
            if (by instanceof Seq && !isDealt) {
                continue;
            }
            if (by instanceof Partitioner) {
                say(by.getClass().getSimpleName(), Integer.valueOf(((Partitioner) by).numPartitions()));
            } else if (by instanceof Expression) {
                sayColumns((Expression) by);
            } else if (by instanceof Seq) {
                for (Iterator column = list((Seq) by).iterator(); column.hasNext();) {
                    sayColumns((Expression) column.next());
                }
            } else {
                say("by", by);
            }
            if (by instanceof RangePartitioner) {
                say("borders", bounds((RangePartitioner) by));
            }
        }
        deals |= isDealt || columns.isUnsteady();
        if (isDealt || isOfMaps || columns.isUnsteady()) {
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
        say(named, what, value);
        say(placed, what, value);
    }

    private static void say(MessageDigest digest, Object what, Object value) {
        digest.update((what + "\t" + value + "\n").getBytes(StandardCharsets.UTF_8));
    }

    private void sayColumns(Expression by) {
        say(placed, "by", columns.placed(by));
        say(named, "by", columns.named(by));
    }

    private static List list(Seq elements) {
        return CollectionConverters.asJava(elements);
    }
}
