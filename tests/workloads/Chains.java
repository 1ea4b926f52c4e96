/** Chains of methods that burn fixed shares of the time; prints the shares of its CPU time. */
public final class Chains {
    static long sink;
    static final long[] used = new long[4];
    interface Work { long run(); }
    static long spin(double ms) {
        long end = System.nanoTime() + (long) (ms * 1e6);
        long x = 1;
        while (System.nanoTime() < end) for (int i = 0; i < 20000; i++) { x ^= x << 13; x ^= x >>> 7; x ^= x << 17; }
        return x;
    }
    static long leafA() { return spin(4); }
    static long midA() { return leafA() + 1; }
    static long chainA() { return midA() + 1; }
    static long chainB() { int k = 7; Work w = () -> spin(3) + k; return w.run() + 1; }
    static long recurse(int n) { return n == 0 ? spin(2) : recurse(n - 1) + 1; }
    static long chainC() { return recurse(20) + 1; }
    long method() { return spin(1); }
    static long chainD() { return new Chains().method() + 1; }
    static long cpu() { return java.lang.management.ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime(); }
    static void timed(int which, Work work) { long t = cpu(); sink += work.run(); used[which] += cpu() - t; }
    public static void main(String[] args) throws Exception {
        System.out.println("pid " + ProcessHandle.current().pid());
        long end = System.nanoTime() + Long.parseLong(args[0]) * 1_000_000_000L;
        while (System.nanoTime() < end) { timed(0, Chains::chainA); timed(1, Chains::chainB); timed(2, Chains::chainC); timed(3, Chains::chainD); }
        double all = 0; for (long u : used) all += u;
        for (int i = 0; i < 4; i++) System.out.println("share_" + (char) ('A' + i) + " " + used[i] / all);
    }
}
