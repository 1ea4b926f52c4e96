import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Ways of calling methods: every stack in burn has one of a few lists of this class's
 * methods. Arguments: seconds, threads.
 */
public final class JavaFrames {
    static volatile long sink;
    static final ThreadLocal<long[]> garbage = ThreadLocal.withInitial(() -> new long[8]);

    static long burn() {
        long end = System.nanoTime() + 500_000;
        long x = 88172645463325252L;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 2000; i++) { x ^= x << 13; x ^= x >>> 7; x ^= x << 17; }
        }
        return x;
    }

    static long even(int n) { return n == 0 ? burn() : odd(n - 1) + 1; }
    static long odd(int n) { return n == 0 ? burn() : even(n - 1) + 1; }
    static long mutual() { return even(9) + 1; }

    static long thrower(int n) {
        if (n == 0) throw new IllegalStateException("x");
        return thrower(n - 1) + burn();
    }
    static long caught() { return burn() + 1; }
    static long catching() {
        try { return thrower(5); } catch (IllegalStateException e) { return caught() + 1; }
    }

    static long streaming() { return IntStream.range(0, 2).mapToLong(i -> burn() + i).sum(); }

    static int ordered(Integer a, Integer b) { sink += burn(); return a.compareTo(b); }
    static long sorting() {
        List<Integer> list = new ArrayList<>(List.of(2, 1));
        list.sort(JavaFrames::ordered);
        return list.get(0);
    }

    public static long reflected() { return burn() + 1; }
    static long reflective() {
        try {
            return (Long) JavaFrames.class.getMethod("reflected").invoke(null);
        } catch (ReflectiveOperationException e) { throw new IllegalStateException(e); }
    }

    interface Shape { long area(); }
    static final class Square implements Shape { public long area() { return burn() + 1; } }
    static final class Circle implements Shape { public long area() { return burn() + 2; } }
    static final class Point implements Shape { public long area() { return burn() + 3; } }
    static final Shape[] shapes = { new Square(), new Circle(), new Point() };
    static long shaped() { long sum = 0; for (Shape shape : shapes) sum += shape.area(); return sum; }

    static final Object lock = new Object();
    synchronized long held() { return burn() + 1; }
    static long holding() { return new JavaFrames().held() + 1; }

    static long allocating() {
        long sum = 0;
        for (int i = 0; i < 200; i++) { byte[] some = new byte[4096 + i]; sum += some.length; garbage.get()[i & 7] = sum; }
        return sum + burn();
    }

    static long variables(long a, long b, long c, long d, long e, long f, long g, long h, double x, double y) {
        return burn() + a + b + c + d + e + f + g + h + (long) (x + y);
    }
    static long many() { return variables(1, 2, 3, 4, 5, 6, 7, 8, 9, 10) + 1; }

    static void work(long seconds) {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (System.nanoTime() < end) {
            sink += mutual(); sink += catching(); sink += streaming(); sink += sorting();
            sink += reflective(); sink += shaped(); sink += holding(); sink += allocating(); sink += many();
        }
    }

    public static void main(String[] args) throws Exception {
        System.out.println("pid " + ProcessHandle.current().pid());
        long seconds = Long.parseLong(args[0]);
        int threads = Integer.parseInt(args[1]);
        List<Thread> all = new ArrayList<>();
        for (int i = 1; i < threads; i++) { Thread t = new Thread(() -> work(seconds)); t.start(); all.add(t); }
        work(seconds);
        for (Thread t : all) t.join();
    }
}
