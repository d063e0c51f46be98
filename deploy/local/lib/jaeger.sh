# Jaeger 2: it takes traces by OTLP, keeps the last ones in memory and answers queries. Built from source, once.
#
# It takes three ports: OTLP by gRPC, by HTTP (the second), and the query interface, which is 16686 where OTLP has its usual
# port and the one after the second port elsewhere.

jaeger_version=v1.76.0
jaeger_port=4317
jaeger_package=github.com/jaegertracing/jaeger/cmd/jaeger

jaeger_is_there() { [[ -x $cache/jaeger/jaeger && $(cat "$cache/jaeger/version") == "$jaeger_version" ]]; }

# A Go that fetches the version that a module needs by itself.
find_go() {
    local go
    for go in "$(command -v go)" /usr/local/go/bin/go /usr/lib/go/bin/go; do
        if [[ -x $go && $("$go" env GOVERSION) =~ ^go1\.(2[1-9]|[3-9][0-9]) ]]; then
            echo "$go"
            return
        fi
    done
    return 1
}

jaeger_get() {
    local new="$cache/jaeger.new" log="$cache/jaeger.fetch.log" go
    go=$(find_go) || { install_packages golang-go && go=$(find_go); } \
        || fail "Jaeger is built with Go 1.21 or later: please install it (https://go.dev/dl)"
    say "jaeger: building $jaeger_version, which takes some minutes once"
    rm -rf "$new"
    mkdir -p "$new"
    (
        cd "$new" || exit 1
        "$go" mod init strandline/local-services &&
            "$go" get -tool "$jaeger_package@$jaeger_version" &&
            nice "$go" build -o jaeger "$jaeger_package"
    ) >"$log" 2>&1 8>&- || { tail -n 20 "$log" >&2; fail "Jaeger could not be built; all of the output is in $log"; }
    echo $jaeger_version >"$new/version"
    rm -rf "${cache:?}/jaeger"
    mv "$new" "$cache/jaeger"
}

jaeger_query_port() { if ((port == jaeger_port)); then echo 16686; else echo $((second_port + 1)); fi; }

jaeger_configure() {
    must_be_free "$(jaeger_query_port)"
    cat >"$dir/jaeger.yaml" <<YAML
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [jaeger_storage_exporter]
  telemetry:
    metrics:
      level: none
extensions:
  jaeger_storage:
    backends:
      memory:
        memory:
          max_traces: 100000
  jaeger_query:
    storage:
      traces: memory
    http:
      endpoint: 127.0.0.1:$(jaeger_query_port)
    grpc:
      endpoint: 127.0.0.1:0
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: 127.0.0.1:$port
      http:
        endpoint: 127.0.0.1:$second_port
exporters:
  jaeger_storage_exporter:
    trace_storage: memory
YAML
}

jaeger_command() {
    command=("$cache/jaeger/jaeger" "$(jaeger_mark)")
    local setting
    for setting in "${sets[@]}"; do command+=("--set=$setting"); done
}

jaeger_mark() { echo "--config=$dir/jaeger.yaml"; }

# The query interface must answer a request with the status 200.
jaeger_answers() {
    is_open "$port" && is_open "$second_port" &&
        [[ $(ask "$(jaeger_query_port)" 'GET /api/services HTTP/1.0\r\n\r\n' 12) == 485454502f312e3?20323030 ]]
}
