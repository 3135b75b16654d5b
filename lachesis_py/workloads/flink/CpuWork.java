package lachesis.workloads;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Arrays;

/** A known amount of CPU work: the same instructions however long the thread has to wait for a CPU. */
final class CpuWork {
    private static final long WARM_UP_STEPS = 20_000_000;
    private static final long SAMPLE_STEPS = 4_000_000;
    private static final double STEPS_PER_MICROSECOND = calibrate();

    private CpuWork() {}

    static long stepsFor(double microseconds) {
        return Math.round(microseconds * STEPS_PER_MICROSECOND);
    }

    /** The caller must use the result, or the compiler removes the work. */
    static long run(long steps, long seed) {
        long x = seed | 1;
        for (long i = 0; i < steps; i++) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
        }
        return x;
    }

    /** Measured in thread CPU time, so that a busy machine does not make the work smaller. */
    private static double calibrate() {
        long sum = 0;
        for (int i = 0; i < 10; i++) {
            sum += run(WARM_UP_STEPS / 10, i);
        }
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        double[] rates = new double[5];
        for (int i = 0; i < rates.length; i++) {
            long before = threads.getCurrentThreadCpuTime();
            sum += run(SAMPLE_STEPS, i);
            rates[i] = SAMPLE_STEPS * 1000.0 / (threads.getCurrentThreadCpuTime() - before);
        }
        Arrays.sort(rates);
        return sum == 0 ? 1 : rates[rates.length / 2];
    }
}
