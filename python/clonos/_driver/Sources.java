package io.clonos;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;
import org.apache.spark.Dependency;
import org.apache.spark.Partition;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonRDD;
import org.apache.spark.rdd.MapPartitionsRDD;
import org.apache.spark.rdd.ParallelCollectionPartition;
import org.apache.spark.rdd.ParallelCollectionRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.jdbc.JDBCRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.FileScan;
import scala.Product;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Of sources of rows, what tells one from others and is the same in each process. */
public class Sources {
    /** What writers put into the names of files. */
    public static final Pattern RANDOM = Pattern.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");

    /** Options that are others in the next run: `spark_plans.py` leaves out the same. */
    private static final Pattern SECRET =
        Pattern.compile("secret|password|token|credential|access.?key", Pattern.CASE_INSENSITIVE);

    private final Functions functions;
    /** What is told apart by the order in which it was met alone, by what is told of it. */
    private final Map met;

    /** What a window is partitioned by, below which the optimizer has left nothing but what is read; null of other plans. */
    private Seq kept;

    /** `met` is of one run of an epoch: a program that runs again meets its frames in the same order. */
    public Sources(Functions functions, Map met) {
        this.functions = functions;
        this.met = met;
    }

    /** From now on it is of an optimized plan: of its sources only that is said which chooses rows, by these columns. */
    public void keepOnly(Seq columns) {
        kept = columns;
    }

    /** What a leaf of a plan says of itself. */
    public void say(LogicalPlan leaf, StringBuilder text) {
        if (leaf instanceof LocalRelation) {
            sayRows((LocalRelation) leaf, text);
        } else if (leaf instanceof DataSourceV2ScanRelation) {
            sayScan(((DataSourceV2ScanRelation) leaf).scan(), text);
        } else if (kept != null) {
            return;
        } else if (leaf instanceof Range) {
            Columns.sayParts((Product) leaf, text);
        } else if (leaf instanceof DataSourceV2Relation) {
            DataSourceV2Relation relation = (DataSourceV2Relation) leaf;
            text.append(' ').append(relation.table().name());
            sayOptions(relation.options().asCaseSensitiveMap(), text);
            Columns.sayPart(relation.timeTravelSpec(), text);
        } else if (leaf instanceof LogicalRelation) {
            sayRelation(((LogicalRelation) leaf).relation(), text);
        } else if (leaf instanceof LogicalRDD) {
            sayFrame(((LogicalRDD) leaf).rdd(), text);
        }
    }

    private void sayRows(LocalRelation leaf, StringBuilder text) {
        List columns = new ArrayList();
        for (Iterator each = list(leaf.output()).iterator(); each.hasNext();) {
            Attribute column = (Attribute) each.next();
            if (kept == null || isKept(column)) {
                columns.add(column);
            }
        }
        Seq chosen = columns.isEmpty() ? leaf.output() : CollectionConverters.asScala(columns).toSeq();
        UnsafeProjection bytes = UnsafeProjection.create((scala.collection.immutable.Seq) chosen, leaf.output());
        List rows = list(leaf.data());
        long all = rows.size();
        for (Iterator each = rows.iterator(); each.hasNext();) {
            all = 31 * all + bytes.apply((InternalRow) each.next()).hashCode();
        }
        text.append(' ').append(all);
    }

    private boolean isKept(Attribute column) {
        for (Iterator each = list(kept).iterator(); each.hasNext();) {
            if (((Expression) each.next()).semanticEquals(column)) {
                return true;
            }
        }
        return false;
    }

    /** What a source itself does not hand out. Sources of others tell that with the columns that are read. */
    private static void sayScan(Scan scan, StringBuilder text) {
        if (scan instanceof FileScan) {
            sayAll(((FileScan) scan).partitionFilters(), text);
            sayAll(((FileScan) scan).dataFilters(), text);
        } else {
            text.append(' ').append(scan.description());
        }
    }

    private static void sayAll(Seq filters, StringBuilder text) {
        for (Iterator each = list(filters).iterator(); each.hasNext();) {
            text.append(' ').append(new Columns().named((Expression) each.next()));
        }
    }

    private void sayRelation(Object relation, StringBuilder text) {
        text.append(' ').append(relation.toString().replaceAll("@[0-9a-f]+", ""));
        if (relation instanceof HadoopFsRelation) {
            HadoopFsRelation files = (HadoopFsRelation) relation;
            StringBuilder folders = new StringBuilder();
            sayOptions(CollectionConverters.asJava(files.options()), folders);
            for (Iterator each = list(files.location().rootPaths()).iterator(); each.hasNext();) {
                folders.append(' ').append(RANDOM.matcher(((Path) each.next()).toString()).replaceAll(""));
            }
            text.append(folders);
            // A table that is written between two queries is another; one that has grown until the program runs again is not.
            text.append(" size ").append(place(folders.toString(), Long.valueOf(files.sizeInBytes())));
        } else if (relation instanceof JDBCRelation) {
            sayOptions(CollectionConverters.asJava(((JDBCRelation) relation).jdbcOptions().parameters()), text);
        }
    }

    private static void sayOptions(Map options, StringBuilder text) {
        Map told = new HashMap();
        for (Iterator each = options.entrySet().iterator(); each.hasNext();) {
            Map.Entry option = (Map.Entry) each.next();
            if (!SECRET.matcher(option.getKey().toString()).find()) {
                told.put(option.getKey(), option.getValue());
            }
        }
        Columns.sayPart(told, text);
    }

    private void sayFrame(RDD rdd, StringBuilder text) {
        StringBuilder lineage = new StringBuilder();
        boolean isTold = sayLineage(rdd, lineage, new HashMap());
        text.append(lineage);
        if (isTold) {
            return;
        }
        text.append(" frame ").append(place(lineage.toString(), Integer.valueOf(rdd.id())));
    }

    /** How many others were met before of which the same is told. */
    private int place(String told, Object key) {
        String digest = Columns.digest(told);
        synchronized (met) {
            List known = (List) met.get(digest);
            if (known == null) {
                known = new ArrayList();
                met.put(digest, known);
            }
            if (!known.contains(key)) {
                known.add(key);
            }
            return known.indexOf(key);
        }
    }

    /** By what an RDD is computed, as far as that can be told; returns whether that is all. */
    private boolean sayLineage(RDD rdd, StringBuilder text, Map seen) {
        Object before = seen.get(Integer.valueOf(rdd.id()));
        if (before != null) {
            text.append(" again ").append(before);
            return true;
        }
        seen.put(Integer.valueOf(rdd.id()), Integer.valueOf(seen.size()));
        if (rdd.checkpointData().isDefined()) {
            // Once its rows are kept, nothing says any more how they were computed.
            text.append(" kept");
            return false;
        }
        text.append(' ').append(rdd.getClass().getSimpleName());
        if (rdd instanceof ParallelCollectionRDD) {
            return sayElements(rdd, text);
        }
        List dependencies = list(rdd.dependencies());
        boolean isTold = rdd instanceof MapPartitionsRDD && dependencies.size() == 1;
        if (rdd instanceof PythonRDD) {
            isTold = sayFunction((PythonRDD) rdd, text);
        }
        for (Iterator each = dependencies.iterator(); each.hasNext();) {
            isTold &= sayLineage(((Dependency) each.next()).rdd(), text, seen);
        }
        return isTold;
    }

    /** Of what Python has handed over; what Spark makes such RDDs for itself of says nothing of their rows. */
    private static boolean sayElements(RDD rdd, StringBuilder text) {
        boolean isTold = false;
        Partition[] partitions = rdd.partitions();
        long all = 0;
        for (int i = 0; i < partitions.length; i++) {
            Seq values = ((ParallelCollectionPartition) partitions[i]).values();
            for (Iterator each = list(values).iterator(); each.hasNext();) {
                Object element = each.next();
                if (!(element instanceof byte[])) {
                    return false;
                }
                isTold = true;
                all = 31 * all + Arrays.hashCode((byte[]) element);
            }
        }
        text.append(' ').append(all);
        return isTold;
    }

    private boolean sayFunction(PythonRDD rdd, StringBuilder text) {
        Field[] fields = PythonRDD.class.getDeclaredFields();
        for (int i = 0; i < fields.length; i++) {
            if (PythonFunction.class.isAssignableFrom(fields[i].getType())) {
                try {
                    fields[i].setAccessible(true);
                    text.append(' ').append(functions.identity((PythonFunction) fields[i].get(rdd)));
                    return true;
                } catch (IllegalAccessException error) {
                    return false;
                }
            }
        }
        return false;
    }

    private static List list(Seq elements) {
        return CollectionConverters.asJava(elements);
    }
}
