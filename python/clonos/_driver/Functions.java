package io.clonos;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.api.python.PythonFunction;

/**
 * Python functions of plans, by what is the same when a program makes them again: Python tells that of what they were pickled
 * to, in which the numbers of broadcasts and the names of classes are others in each process.
 */
public class Functions {
    /** What Python said, by digests of the pickles. */
    private final Map known;
    /** Those that Python is to be asked for, by the same. */
    private final Map unknown = new HashMap();

    public Functions(Map known) {
        this.known = known;
    }

    /** What a function is, or what tells it in this process alone if Python was not asked yet. */
    public String identity(PythonFunction function) {
        String digest = Columns.digest(Columns.pickled(function));
        Object identity = known.get(digest);
        if (identity == null) {
            unknown.put(digest, function);
            return digest;
        }
        return identity.toString();
    }

    public Map unknown() {
        return unknown;
    }
}
