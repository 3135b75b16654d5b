package lachesis.workloads;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.ParameterTool;

/**
 * source -> operators -> sink, each a task of its own, each operator with a cost of its own.
 *
 * <p>--name NAME --operators op1,op2,... --costs-us 10,20,... --rate RECORDS_PER_SECOND (0: as fast as it goes)
 * --parallelism N
 */
public final class ChainJob {
    private ChainJob() {}

    public static void main(String[] args) throws Exception {
        ParameterTool parameters = ParameterTool.fromArgs(args);
        String[] names = parameters.getRequired("operators").split(",");
        String[] costs = parameters.getRequired("costs-us").split(",");
        if (names.length != costs.length) {
            throw new IllegalArgumentException(names.length + " operators but " + costs.length + " costs");
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        environment.setParallelism(parameters.getInt("parallelism", 1));
        environment.disableOperatorChaining();

        DataStream<Long> records = environment
                .fromSource(source(parameters.getDouble("rate")), WatermarkStrategy.noWatermarks(), "source")
                .uid("source");
        for (int i = 0; i < names.length; i++) {
            records = records.map(new Burn(Double.parseDouble(costs[i]))).returns(Types.LONG).name(names[i]).uid(names[i]);
        }
        records.sinkTo(new DiscardingSink<>()).name("sink").uid("sink");
        environment.execute(parameters.get("name", "chain"));
    }

    private static DataGeneratorSource<Long> source(double rate) {
        GeneratorFunction<Long, Long> index = i -> i;
        RateLimiterStrategy<?> pace = rate > 0 ? RateLimiterStrategy.perSecond(rate) : RateLimiterStrategy.noOp();
        return new DataGeneratorSource<>(index, Long.MAX_VALUE, pace, Types.LONG);
    }

    private static final class Burn extends RichMapFunction<Long, Long> {
        private static final long serialVersionUID = 1;

        private final double microseconds;
        private transient long steps;

        Burn(double microseconds) {
            this.microseconds = microseconds;
        }

        @Override
        public void open(OpenContext context) {
            steps = CpuWork.stepsFor(microseconds);
        }

        @Override
        public Long map(Long record) {
            return CpuWork.run(steps, record) == 0 ? 0L : record;
        }
    }
}
