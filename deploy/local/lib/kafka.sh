# Kafka: one node that is broker and controller (KRaft), and with --join brokers beside it that have this node for their
# controller. Without TLS or authentication unless --set asks for them.

kafka_version=4.1.1
kafka_port=9092

kafka_is_there() { jars_are_there kafka; }
kafka_get() { get_jars kafka; }

kafka_pom() {
    pom org.apache.kafka:{kafka_2.13,kafka-tools}:$kafka_version org.apache.logging.log4j:log4j-slf4j-impl:2.24.3
}

# Properties as Kafka reads them; of a key that is there twice it takes the last, so --set comes last.
kafka_configure() {
    local options roles=broker,controller node=1 controller=$second_port
    local listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$second_port
    if [[ -n $join ]]; then
        roles=broker node=$port listeners=PLAINTEXT://127.0.0.1:$port
        controller=$(sed -n 's/^second-port //p' "$join/settings")
    fi
    cat >"$dir/server.properties" <<PROPERTIES
process.roles=$roles
node.id=$node
controller.quorum.voters=1@127.0.0.1:$controller
controller.listener.names=CONTROLLER
listeners=$listeners
advertised.listeners=PLAINTEXT://127.0.0.1:$port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
log.dirs=$dir/data

auto.create.topics.enable=false
delete.topic.enable=true
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0

# After a kill the broker may only come back once its old session has ended.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500

log.initial.task.delay.ms=500
log.cleaner.backoff.ms=1000
log.retention.check.interval.ms=1000
$(printf '%s\n' "${sets[@]}")
PROPERTIES

    if [[ ! -e $dir/data/meta.properties ]]; then
        mkdir -p "$dir/data"
        read -ra options <<<"-Xmx128m -XX:TieredStopAtLevel=1 $(archive_options kafka)"
        "$(java17)" "${options[@]}" -cp "$(jars kafka)/*" \
            kafka.tools.StorageTool format -t "$(kafka_cluster_id)" -c "$dir/server.properties" >"$dir/format.log" 2>&1 9>&- \
            || { tail -n 20 "$dir/format.log" >&2; fail "kafka could not format $dir/data"; }
    fi
}

# That of the Kafka that is joined, or a new one: a Kafka UUID is 16 bytes in the URL alphabet of base64.
kafka_cluster_id() {
    if [[ -n $join ]]; then
        sed -n 's/^cluster.id=//p' "$join/data/meta.properties"
    else
        head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '='
    fi
}

kafka_mark() { java_mark; }

kafka_command() {
    local options
    read -ra options <<<"${SERVICES_KAFKA_JVM:--Xmx512m} $(archive_options kafka)"
    command=("$(java17)" "$(kafka_mark)" "${options[@]}" "${extra_options[@]}" -Djava.net.preferIPv4Stack=true
        "-Dlog4j2.configurationFile=$here/lib/kafka-log4j2.xml" -cp "$(jars kafka)/*" kafka.Kafka "$dir/server.properties")
}

# An ApiVersions request of version 0 must be answered under its own number. A TLS port can only be seen to be open.
kafka_answers() {
    has_said 'Kafka Server started' || return 1
    if grep '^listeners=' "$dir/server.properties" | tail -n 1 | grep -qE '=(SASL_)?SSL:'; then
        is_open "$port"
    else
        [[ $(ask "$port" '\0\0\0\12\0\22\0\0\0\0\0\7\377\377' 8) == *'00000007' ]]
    fi
}
