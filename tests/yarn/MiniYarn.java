// A resource manager and node managers in one process, until its standard input ends. Run as it is: java MiniYarn.java

import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.file.Path;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

public class MiniYarn {
    /** Folder for what clients need to know, and how many nodes. */
    public static void main(String[] args) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        conf.set("fs.defaultFS", "file:///");
        conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
        conf.setInt(YarnConfiguration.NM_PMEM_MB, 4096);
        conf.setInt(YarnConfiguration.NM_VCORES, 4);
        // What is measured is a container's memory, and the machine may have less than its containers were promised.
        conf.setBoolean(YarnConfiguration.NM_PMEM_CHECK_ENABLED, false);
        conf.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
        conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99");
        String queue = "yarn.scheduler.capacity.root.default.";
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set(queue + "capacity", "100");
        conf.set(queue + "maximum-capacity", "100");
        conf.set(queue + "state", "RUNNING");
        conf.set(queue + "acl_submit_applications", "*");
        conf.set(queue + "maximum-am-resource-percent", "0.5");
        conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.5");
        MiniYARNCluster cluster = new MiniYARNCluster("clonos", Integer.parseInt(args[1]), 1, 1);
        cluster.init(conf);
        cluster.start();
        try (OutputStream out = new FileOutputStream(Path.of(args[0], "yarn-site.xml").toFile())) {
            cluster.getConfig().writeXml(out);
        }
        System.out.println("ready");
        System.out.flush();
        while (System.in.read() >= 0) {
        }
        // Also its containers end.
        cluster.stop();
        System.exit(0);
    }
}
