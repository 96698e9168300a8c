package peer;

import com.hazelcast.config.Config;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * A member of a Hazelcast cluster on this machine: MEMBERS, PORT, BACKUPS, and the ports of all
 * members, separated by commas. Each line of standard input, such as `put 64 1024 500000000`, asks
 * for a measurement from inside this member: the call, the size of the values, how many keys, and
 * for how many nanoseconds. The answer is a line with the time of each call in nanoseconds. The
 * member ends with its standard input.
 */
public final class Member {
    private Member() {}

    public static void main(String[] arguments) throws Exception {
        int members = Integer.parseInt(arguments[0]);
        int backups = Integer.parseInt(arguments[2]);
        Config config = new Config();
        config.setClusterName("bench-" + arguments[3].hashCode());
        config.setProperty("hazelcast.logging.type", "none");
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.socket.bind.any", "false");
        var network = config.getNetworkConfig();
        network.setPort(Integer.parseInt(arguments[1])).setPortAutoIncrement(false);
        network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        var join = network.getJoin();
        join.getAutoDetectionConfig().setEnabled(false);
        join.getMulticastConfig().setEnabled(false);
        join.getTcpIpConfig().setEnabled(true);
        for (String port : arguments[3].split(",")) {
            join.getTcpIpConfig().addMember("127.0.0.1:" + port);
        }
        var map = config.getMapConfig("bench");
        map.setBackupCount(backups).setAsyncBackupCount(0).setInMemoryFormat(InMemoryFormat.BINARY);
        HazelcastInstance hazelcast = Hazelcast.newHazelcastInstance(config);
        long until = System.nanoTime() + 60_000_000_000L;
        while (hazelcast.getCluster().getMembers().size() < members) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("the members did not find each other");
            }
            Thread.sleep(50);
        }
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        out.println("ready " + hazelcast.getCluster().getLocalMember().getVersion());
        out.flush();
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        boolean isWarm = false;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (!isWarm) {
                // Java compiles the calls during their first seconds, which do not count.
                measure(hazelcast.getMap("bench"), true, 64, 1024, 2_000_000_000L);
                measure(hazelcast.getMap("bench"), false, 64, 1024, 2_000_000_000L);
                isWarm = true;
            }
            out.println(measure(hazelcast.getMap("bench"), words[0].equals("put"),
                    Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                    Long.parseLong(words[3])));
            out.flush();
        }
        hazelcast.getLifecycleService().terminate();
        System.exit(0);
    }

    private static String measure(
            IMap<String, byte[]> map, boolean isPut, int size, int keys, long length) {
        byte[] value = new byte[size];
        String[] names = new String[keys];
        for (int key = 0; key < keys; key++) {
            names[key] = "bench/" + size + "/" + key;
            map.set(names[key], value);
        }
        StringBuilder samples = new StringBuilder();
        long random = 1;
        int next = 0;
        long end = System.nanoTime() + length;
        for (long now = System.nanoTime(); now < end; ) {
            String name;
            if (isPut) {
                name = names[next];
                next = (next + 1) % keys;
            } else {
                random = random * 6364136223846793005L + 1442695040888963407L;
                name = names[(int) (((random >>> 33) * keys) >>> 31)];
            }
            long begin = System.nanoTime();
            if (isPut) {
                map.set(name, value);
            } else if (map.get(name).length != size) {
                throw new IllegalStateException("a value has another size");
            }
            now = System.nanoTime();
            samples.append(now - begin).append(' ');
        }
        return samples.toString().trim();
    }
}
