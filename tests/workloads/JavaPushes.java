import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.TreeMap;

/**
 * Work in code that pushes words in the middle of a compiled method's frame: it compares and
 * searches strings, checks types and converts numbers. Each method is called by work only, which
 * main calls. Argument: seconds.
 */
public final class JavaPushes {
    static volatile Object sink;
    static final String PREFIX = "the same long beginning of all of these names ";
    static final List<String> names = new ArrayList<>();
    static final String text = String.join(" ", Collections.nCopies(300, "foo bar ipsum aaab"));

    interface Marked {}
    interface Shape { double area(); }
    static class First implements Shape, Marked { public double area() { return 1; } }
    static class Second implements Marked, Cloneable, Shape { public double area() { return 2; } }
    static class Third extends Second implements Comparable<Third> {
        public double area() { return 3; }
        public int compareTo(Third other) { return 0; }
    }
    static final Object[] things = { new First(), new Second(), new Third(), "text", 1, new int[2] };

    static void compares() {
        TreeMap<String, Integer> counts = new TreeMap<>();
        for (String name : names) counts.merge(name, 1, Integer::sum);
        sink = counts;
    }

    static void sorts() {
        List<String> copy = new ArrayList<>(names);
        copy.sort((a, b) -> a.compareTo(b));
        sink = copy;
    }

    static void searches() {
        int found = 0;
        for (int i = 0; i < 20; i++) {
            found += text.indexOf("ipsum aaab " + (char) ('c' + i)) + text.lastIndexOf("zz");
            if (text.contains("not there")) found++;
        }
        sink = found;
    }

    static void checks() {
        int found = 0;
        for (int i = 0; i < 30_000; i++) {
            Object thing = things[i % things.length];
            if (thing instanceof Marked) found++;
            if (thing instanceof Shape) found += (int) ((Shape) thing).area();
            if (thing instanceof Comparable) found += 2;
        }
        sink = found;
    }

    static void converts() {
        double number = 1;
        long sum = 0;
        for (int i = 0; i < 20_000; i++) {
            number = number * 1.5 % 1e300;
            sum += (long) (number * 1e19);
        }
        sink = sum;
    }

    static void work(long seconds) {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (System.nanoTime() < end) {
            compares(); sorts(); searches(); checks(); converts();
        }
    }

    public static void main(String[] arguments) {
        System.out.println("pid " + ProcessHandle.current().pid());
        Random random = new Random(1);
        for (int i = 0; i < 2000; i++) names.add(PREFIX + random.nextInt(1000));
        work(Long.parseLong(arguments[0]));
    }
}
