# Cassandra: one node that is a cluster of its own, without JMX, and without TLS or authentication unless --set asks for them.

cassandra_version=5.0.6
cassandra_port=9042

cassandra_is_there() { jars_are_there cassandra; }
cassandra_get() { get_jars cassandra; }

cassandra_pom() { pom org.apache.cassandra:cassandra-all:$cassandra_version; }

# Of a key that is there twice the yaml reader takes the last, so --set comes last.
cassandra_configure() {
    local setting
    mkdir -p "$dir/data"
    {
        cat <<YAML
cluster_name: strandline-local
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:$second_port"
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
start_native_transport: true
native_transport_port: $port
storage_port: $second_port

data_file_directories: ["$dir/data/data"]
commitlog_directory: "$dir/data/commitlog"
saved_caches_directory: "$dir/data/saved_caches"
hints_directory: "$dir/data/hints"
cdc_raw_directory: "$dir/data/cdc_raw"

# A periodic log loses the last tenth of a second when the process is killed, also of conditional writes: here there is no
# second replica that has them.
commitlog_sync: batch
commitlog_total_space: 512MiB
memtable_heap_space: 128MiB
memtable_offheap_space: 128MiB
auto_snapshot: false

# A small machine may be slow.
read_request_timeout: 10s
write_request_timeout: 10s
cas_contention_timeout: 5s
YAML
        for setting in "${sets[@]}"; do
            printf '%s: %s\n' "${setting%%=*}" "${setting#*=}"
        done
    } >"$dir/cassandra.yaml"
}

cassandra_mark() { java_mark; }

# Without "foreground" Cassandra closes its standard output, which is the log, just before it says that it listens.
cassandra_command() {
    local options opens
    read -ra options <<<"${SERVICES_CASSANDRA_JVM:--Xms512m -Xmx1g} $(archive_options cassandra)"
    mapfile -t opens <"$here/lib/cassandra-jvm17.options"
    command=("$(java17)" "$(cassandra_mark)" "${options[@]}" "${extra_options[@]}" "${opens[@]}"
        -XX:+UnlockDiagnosticVMOptions -XX:+AllowArchivingWithJavaAgent -Djava.net.preferIPv4Stack=true
        "-javaagent:$(jars cassandra)/jamm-0.4.0.jar" "-Dlogback.configurationFile=$here/lib/cassandra-logback.xml"
        "-Dcassandra.config=file://$dir/cassandra.yaml" "-Dcassandra.storagedir=$dir/data" "-Dcassandra.logdir=$dir"
        -Dcassandra-foreground=yes -Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.ring_delay_ms=0 -Dcassandra.initial_token=0
        -cp "$(jars cassandra)/*" org.apache.cassandra.service.CassandraDaemon)
}

# An OPTIONS frame of protocol version 4 must be answered by a frame whose opcode is SUPPORTED.
cassandra_answers() {
    has_said 'Starting listening for CQL clients' && [[ $(ask "$port" '\4\0\0\0\5\0\0\0\0' 5) == 84*06 ]]
}
