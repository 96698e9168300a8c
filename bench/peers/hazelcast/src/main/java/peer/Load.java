package peer;

import com.hazelcast.map.IMap;
import java.util.Arrays;
import java.util.List;

/** Calls of several threads, in turn at the members of this machine, and the time of each. */
final class Load {
    private final List<IMap<String, byte[]>> maps;
    private final String call;
    private final int size;
    private final int keys;
    private final long length;
    private final int callers;
    private final int first;
    private final int all;
    private final long period;

    Load(List<IMap<String, byte[]>> maps, String[] words) {
        this.maps = maps;
        call = words[1];
        size = Integer.parseInt(words[2]);
        keys = Integer.parseInt(words[3]);
        length = Long.parseLong(words[4]);
        callers = Integer.parseInt(words[5]);
        first = Integer.parseInt(words[6]);
        all = Integer.parseInt(words[7]);
        period = Long.parseLong(words[8]);
    }

    /** The times of all calls, in nanoseconds. */
    String measure() throws InterruptedException {
        String[] names = new String[keys];
        for (int key = 0; key < keys; key++) {
            names[key] = Member.name(size, key);
        }
        long begin = System.nanoTime() + 5_000_000;
        long[][] samples = new long[callers][];
        Thread[] threads = new Thread[callers];
        for (int thread = 0; thread < callers; thread++) {
            int number = thread;
            threads[thread] = new Thread(
                    () -> samples[number] = makeCalls(first + number, begin, names));
            threads[thread].start();
        }
        StringBuilder answer = new StringBuilder();
        for (int thread = 0; thread < callers; thread++) {
            threads[thread].join();
            if (samples[thread] == null) {
                throw new IllegalStateException("a caller failed");
            }
            for (long sample : samples[thread]) {
                answer.append(sample).append(' ');
            }
        }
        return answer.toString().trim();
    }

    private long[] makeCalls(int caller, long begin, String[] names) {
        IMap<String, byte[]> map = maps.get((caller - first) % maps.size());
        byte[] value = new byte[size];
        long[] samples = new long[1024];
        int count = 0;
        long random = 1 + caller;
        int next = (int) ((long) caller * keys / all);
        long due = begin;
        long end = begin + length;
        boolean isPut = call.equals("put");
        boolean isMixed = call.equals("mixed");
        Member.waitUntil(begin);
        while (true) {
            long from = System.nanoTime();
            if (period > 0) {
                if (due >= end) {
                    break;
                }
                from = due;
                due += period;
                Member.waitUntil(from);
            } else if (from >= end) {
                break;
            }
            int index;
            boolean puts = isPut;
            if (isPut) {
                index = next;
                next = (next + 1) % keys;
            } else {
                random = random * 6364136223846793005L + 1442695040888963407L;
                index = (int) (((random >>> 33) * keys) >>> 31);
                puts = isMixed && (random >>> 32 & 1) == 1;
            }
            if (puts) {
                map.set(names[index], value);
            } else if (map.get(names[index]).length != size) {
                throw new IllegalStateException("a value has another size");
            }
            if (count == samples.length) {
                samples = Arrays.copyOf(samples, 2 * count);
            }
            samples[count++] = System.nanoTime() - from;
        }
        return Arrays.copyOf(samples, count);
    }
}
