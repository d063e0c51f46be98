import java.nio.channels.FileChannel;
import java.nio.file.Path;

/** A wall clock that is as many milliseconds ahead of the machine's as a file said when it started. */
public class ShiftedClock implements org.apache.cassandra.utils.Clock {
    private static final long SHIFT = shift();

    private static long shift() {
        try (FileChannel file = FileChannel.open(Path.of(System.getProperty("clock.shift")))) {
            return file.map(FileChannel.MapMode.READ_ONLY, 0, Long.BYTES).getLong(0);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    /** It is an agent only because an agent's jar is on the class path. */
    public static void premain(String options) {}

    @Override
    public long nanoTime() {
        return System.nanoTime();
    }

    @Override
    public long currentTimeMillis() {
        return System.currentTimeMillis() + SHIFT;
    }
}
