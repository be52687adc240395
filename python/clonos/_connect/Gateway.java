package io.clonos;

import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.SecureRandom;
import java.util.HexFormat;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.api.java.UDF1;
import py4j.ClientServer;

/**
 * Lets a process on the driver's host into the driver's JVM, as PySpark itself does where it starts that: a py4j gateway
 * on the loopback interface, with a token that stands in a file which nobody else can read.
 *
 * A function of SQL, so that a client of Spark Connect can have it called. It answers with the JVM's process id.
 */
public final class Gateway implements UDF1<String, String>, Runnable {
  private static final int TOKEN_BYTES = 32;
  private static ClientServer server;
  private static String token;

  /** Writes port and token into the file `gateway` of a folder. */
  @Override
  public String call(String folder) throws Exception {
    if (!"driver".equals(SparkEnv.get().executorId())) {
      return "not the driver";
    }
    // Several clients may ask at once.
    FileAttribute<?> mine = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"));
    Path made = Files.createTempFile(Path.of(folder), "gateway", null, mine);
    Files.writeString(made, port() + " " + token);
    Files.move(made, Path.of(folder, "gateway"), StandardCopyOption.ATOMIC_MOVE);
    return Long.toString(ProcessHandle.current().pid());
  }

  private static synchronized int port() throws Exception {
    if (server == null) {
      byte[] drawn = new byte[TOKEN_BYTES];
      new SecureRandom().nextBytes(drawn);
      token = HexFormat.of().formatHex(drawn);
      InetAddress here = InetAddress.getByName("127.0.0.1");
      // Of the kind that PySpark starts: another one calls back in words that it does not know.
      server = new ClientServer.ClientServerBuilder().authToken(token).javaPort(0).javaAddress(here).build();
      // A thread that does not keep the JVM from ending.
      Thread thread = new Thread(new Gateway(), "clonos-gateway");
      thread.setDaemon(true);
      thread.start();
      while (server.getJavaServer().getListeningPort() < 0) {
        Thread.sleep(5);
      }
    }
    return server.getJavaServer().getListeningPort();
  }

  @Override
  public void run() {
    server.startServer(false);
  }
}
