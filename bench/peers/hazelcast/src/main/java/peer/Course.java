package peer;

import com.hazelcast.cluster.Member;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;

/**
 * Writes at a fixed rate while another member is killed. The first half of the writers write keys
 * whose partition the victim owns at the beginning, the others write other keys. Each write has a
 * key of its own, and is repeated until it is acknowledged.
 *
 * <p>The answer is a line `begun`, and after the run: a line `write AFFECTED DUE ACKED` for each
 * acknowledged write, with times of the monotonic clock; `back AT` if all copies were there again;
 * `lost COUNT` for the acknowledged writes that could not be read back; and `done`.
 */
final class Course {
    /** How long all copies have to be there, to count. */
    private static final long STEADY = 300_000_000;

    private final HazelcastInstance hazelcast;
    private final IMap<String, byte[]> map;
    private final int writers;
    private final long length;
    private final long period;
    private final int size;
    private final int victimPort;

    private record Write(String key, boolean affected, long due, long acked) {}

    Course(HazelcastInstance hazelcast, IMap<String, byte[]> map, String[] words) {
        this.hazelcast = hazelcast;
        this.map = map;
        writers = Integer.parseInt(words[1]);
        length = Long.parseLong(words[2]);
        period = Long.parseLong(words[3]);
        size = Integer.parseInt(words[4]);
        victimPort = Integer.parseInt(words[5]);
    }

    void run(PrintStream out) throws InterruptedException {
        int members = hazelcast.getCluster().getMembers().size();
        var partitions = hazelcast.getPartitionService();
        boolean[] isVictims = new boolean[partitions.getPartitions().size()];
        for (var partition : partitions.getPartitions()) {
            Member owner = partition.getOwner();
            isVictims[partition.getPartitionId()] =
                    owner != null && owner.getAddress().getPort() == victimPort;
        }
        long begin = System.nanoTime() + 20_000_000;
        List<List<Write>> writes = new ArrayList<>();
        Thread[] threads = new Thread[writers];
        for (int writer = 0; writer < writers; writer++) {
            List<Write> own = new ArrayList<>();
            writes.add(own);
            int number = writer;
            threads[writer] = new Thread(() -> write(number, begin, isVictims, own));
            threads[writer].start();
        }
        out.println("begun");
        out.flush();
        long back = 0;
        while (System.nanoTime() < begin + length) {
            boolean isLess = hazelcast.getCluster().getMembers().size() < members;
            if (!isLess || !partitions.isClusterSafe()) {
                back = 0;
            } else if (back == 0) {
                back = System.nanoTime();
            }
            Thread.sleep(2);
        }
        long now = System.nanoTime();
        for (Thread thread : threads) {
            thread.join();
        }
        int lost = 0;
        StringBuilder lines = new StringBuilder();
        for (Write write : writes.stream().flatMap(List::stream).toList()) {
            lines.append("write ").append(write.affected() ? 1 : 0).append(' ');
            lines.append(write.due()).append(' ').append(write.acked()).append('\n');
            lost += map.containsKey(write.key()) ? 0 : 1;
        }
        if (back != 0 && now - back > STEADY) {
            lines.append("back ").append(back).append('\n');
        }
        out.print(lines.append("lost ").append(lost).append("\ndone\n"));
    }

    private void write(int writer, long begin, boolean[] isVictims, List<Write> writes) {
        byte[] value = new byte[size];
        boolean affected = writer < writers / 2;
        var partitions = hazelcast.getPartitionService();
        int number = 0;
        for (long due = begin; due < begin + length; due += period) {
            String key;
            do {
                key = "course/" + writer + "/" + number++;
            } while (isVictims[partitions.getPartition(key).getPartitionId()] != affected);
            peer.Member.waitUntil(due);
            while (System.nanoTime() < begin + length) {
                try {
                    map.set(key, value);
                    writes.add(new Write(key, affected, due, System.nanoTime()));
                    break;
                } catch (RuntimeException error) {
                    Thread.yield();
                }
            }
        }
    }
}
