package tailer;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.NoopCache$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.PartitionDirectory$;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.types.StructType;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.collection.Iterator;
import scala.collection.immutable.ArraySeq$;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;

/**
 * The files of one scan, each a partition with its own values.
 *
 * See file_index.py. Spark's compiler has neither generics nor annotations.
 */
public final class Files implements FileIndex {
    private static final long BLOCK = 134217728L;  // of a local file nobody asks for it

    private final StructType schema;
    private final PartitionDirectory[] all;
    private final String[] uris;
    private final Path folder;  // of one file
    private final long size;
    private final InMemoryFileIndex partitions;  // with the same values and without files: it chooses by conditions

    /**
     * schema: the partition columns; the last is the number of the file.
     * values: of the partition columns, for each file.
     * files: a line for each, with its size in bytes, a space, and its path. There is at least one.
     */
    public Files(SparkSession spark, StructType schema, InternalRow[] values, String files) {
        String[] lines = files.split("\n");
        if (lines.length != values.length) {
            throw new IllegalArgumentException(lines.length + " files, but values of " + values.length);
        }
        PartitionPath[] named = new PartitionPath[lines.length];
        long size = 0;
        this.schema = schema;
        this.all = new PartitionDirectory[lines.length];
        this.uris = new String[lines.length];
        for (int at = 0; at < lines.length; at++) {
            if (values[at].getInt(schema.length() - 1) != at) {
                throw new IllegalArgumentException("the values of file " + at + " are in another place");
            }
            int space = lines[at].indexOf(' ');
            long length = Long.parseLong(lines[at].substring(0, space));
            Path path = new Path("file://" + lines[at].substring(space + 1));
            FileStatus file = new FileStatus(length, false, 1, BLOCK, 0L, path);
            all[at] = PartitionDirectory$.MODULE$.apply(values[at], new FileStatus[] {file});
            uris[at] = path.toUri().toString();
            named[at] = new PartitionPath(values[at], path);
            size += length;
        }
        this.size = size;
        this.folder = named[0].path().getParent();
        this.partitions = new InMemoryFileIndex(
            spark, sequence(new Path[0]), Map$.MODULE$.empty(), (Option) None$.MODULE$, NoopCache$.MODULE$,
            new Some(new PartitionSpec(schema, sequence(named))), (Option) None$.MODULE$);
    }

    public Seq rootPaths() {
        return sequence(new Path[] {folder});
    }

    /** Spark relies on the answer: rows of files that do not meet the conditions would be in the result. */
    public Seq listFiles(Seq onPartitions, Seq onRows) {
        if (onPartitions.isEmpty()) {
            return sequence(all);
        }
        Seq chosen = partitions.listFiles(onPartitions, sequence(new Object[0]));
        PartitionDirectory[] found = new PartitionDirectory[chosen.length()];
        int at = 0;
        for (Iterator each = chosen.iterator(); each.hasNext(); at++) {
            found[at] = all[((PartitionDirectory) each.next()).values().getInt(schema.length() - 1)];
        }
        return sequence(found);
    }

    public String[] inputFiles() {
        return uris;
    }

    /** The files are decided. */
    public void refresh() {
    }

    public long sizeInBytes() {
        return size;
    }

    public StructType partitionSchema() {
        return schema;
    }

    public Option metadataOpsTimeNs() {
        return (Option) None$.MODULE$;
    }

    public String toString() {
        return all.length + " files";
    }

    private static Seq sequence(Object[] items) {
        return (Seq) ArraySeq$.MODULE$.unsafeWrapArray(items);
    }
}
