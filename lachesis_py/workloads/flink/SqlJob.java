package lachesis.workloads;

import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/** Runs SQL statements in order, one per argument; settings come with the submission. */
public final class SqlJob {
    private SqlJob() {}

    public static void main(String[] statements) {
        StreamTableEnvironment tables =
                StreamTableEnvironment.create(StreamExecutionEnvironment.getExecutionEnvironment());
        for (String statement : statements) {
            tables.executeSql(statement);
        }
    }
}
