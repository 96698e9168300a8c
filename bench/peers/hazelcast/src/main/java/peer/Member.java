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
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.FutureTask;

/**
 * A Java machine with members of a Hazelcast cluster: MEMBERS, BACKUPS, the HOST:PORT of each
 * member of this machine, and the HOST:PORT of all members of the cluster, both separated by
 * commas. The machine ends with its standard input, whose lines are requests:
 *
 * <pre>
 * fill SIZE KEYS    sets all keys; the answer is the line `filled`
 * load CALL SIZE KEYS LENGTH CALLERS FIRST ALL PERIOD
 *                   CALLERS threads make calls for LENGTH nanoseconds, in turn at the members of
 *                   this machine; they are the callers from FIRST on, of ALL. With a PERIOD above 0
 *                   each begins a call in every PERIOD nanoseconds, and times count from the moment
 *                   at which it was due. The answer is a line with the time of each call in
 *                   nanoseconds.
 * memory            the answer is a line with the bytes of the heap that are in use
 * course WRITERS LENGTH PERIOD SIZE VICTIM
 *                   what {@link Course} does, with its answer
 * </pre>
 */
public final class Member {
    private Member() {}

    public static void main(String[] arguments) throws Exception {
        int members = Integer.parseInt(arguments[0]);
        int backups = Integer.parseInt(arguments[1]);
        List<HazelcastInstance> own = start(backups, arguments[2].split(","), arguments[3]);
        HazelcastInstance hazelcast = own.get(0);
        long until = System.nanoTime() + 170_000_000_000L;
        while (own.stream().anyMatch(one -> one.getCluster().getMembers().size() < members)
                || !hazelcast.getPartitionService().isClusterSafe()) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("the members did not find each other");
            }
            Thread.sleep(50);
        }
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        out.println("ready " + hazelcast.getCluster().getLocalMember().getVersion());
        out.flush();
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<IMap<String, byte[]>> maps = new ArrayList<>();
        own.forEach(one -> maps.add(one.getMap("bench")));
        IMap<String, byte[]> bench = maps.get(0);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "fill" -> {
                    byte[] value = new byte[Integer.parseInt(words[1])];
                    for (int key = 0; key < Integer.parseInt(words[2]); key++) {
                        bench.set(name(value.length, key), value);
                    }
                    out.println("filled");
                }
                case "load" -> out.println(new Load(maps, words).measure());
                case "memory" -> out.println(memory());
                case "course" -> new Course(hazelcast, bench, words).run(out);
                default -> throw new IllegalStateException("an unknown request: " + line);
            }
            out.flush();
        }
        own.forEach(one -> one.getLifecycleService().terminate());
        System.exit(0);
    }

    /** Starts the members of this machine, all at once. */
    private static List<HazelcastInstance> start(int backups, String[] own, String all)
            throws Exception {
        List<FutureTask<HazelcastInstance>> starts = new ArrayList<>();
        for (String address : own) {
            Config config = config(backups, address.split(":"), all);
            var start = new FutureTask<>(() -> Hazelcast.newHazelcastInstance(config));
            starts.add(start);
            new Thread(start).start();
        }
        List<HazelcastInstance> started = new ArrayList<>();
        for (var start : starts) {
            started.add(start.get());
        }
        return started;
    }

    private static Config config(int backups, String[] own, String all) {
        Config config = new Config();
        config.setClusterName("bench-" + all.hashCode());
        config.setProperty("hazelcast.logging.type", "none");
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.socket.bind.any", "false");
        // The members are all started at once: none waits for late ones.
        config.setProperty("hazelcast.wait.seconds.before.join", "1");
        // SIGTERM ends the member at once, as the benchmark asks for.
        config.setProperty("hazelcast.shutdownhook.enabled", "false");
        var network = config.getNetworkConfig();
        network.setPort(Integer.parseInt(own[1])).setPortAutoIncrement(false);
        network.getInterfaces().setEnabled(true).addInterface(own[0]);
        var join = network.getJoin();
        join.getAutoDetectionConfig().setEnabled(false);
        join.getMulticastConfig().setEnabled(false);
        join.getTcpIpConfig().setEnabled(true);
        for (String address : all.split(",")) {
            join.getTcpIpConfig().addMember(address);
        }
        var map = config.getMapConfig("bench");
        map.setBackupCount(backups).setAsyncBackupCount(0).setInMemoryFormat(InMemoryFormat.BINARY);
        return config;
    }

    static String name(int size, int key) {
        return "bench/" + size + "/" + key;
    }

    /** The bytes of the heap that are in use. */
    private static long memory() throws InterruptedException {
        Runtime runtime = Runtime.getRuntime();
        for (int round = 0; round < 3; round++) {
            System.gc();
            Thread.sleep(50);
        }
        return runtime.totalMemory() - runtime.freeMemory();
    }

    /** Waits until a moment: in sleep at first, then awake. */
    static void waitUntil(long moment) {
        for (long left = moment - System.nanoTime(); left > 0; left = moment - System.nanoTime()) {
            if (left > 300_000) {
                java.util.concurrent.locks.LockSupport.parkNanos(left - 300_000);
            } else {
                Thread.onSpinWait();
            }
        }
    }
}
