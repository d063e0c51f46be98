# An instance: one server with all that is its own in one directory.
#
#   settings           ports and --set of the last start: a start without options is a restart as it was
#   pid                of the process; believed only while that process names this directory on its command line
#   server.log         what the server printed since its start; server.log.1 is from the start before
#   data               kept from start to start
#   and the configuration, which is written anew at each start
#
# The functions work on the global variables kind, dir, port, second_port and sets.

start_timeout=${SERVICES_START_TIMEOUT:-120}
stop_timeout=${SERVICES_STOP_TIMEOUT:-30}

# One command at a time may change an instance. The server must not inherit the lock, hence each 9>&-.
lock_instance() {
    mkdir -p "$dir"
    exec 9>"$dir/lock"
    flock 9
}

load_settings() {
    local key value
    port='' second_port='' sets=()
    [[ -e $dir/settings ]] || return 0
    while IFS=' ' read -r key value; do
        case $key in
            kind) [[ $value == "$kind" ]] || fail "$dir holds a $value, not a $kind" ;;
            port) port=$value ;;
            second-port) second_port=$value ;;
            set) sets+=("$value") ;;
        esac
    done <"$dir/settings"
}

settings_text() {
    printf 'kind %s\nport %s\nsecond-port %s\n' "$kind" "$port" "$second_port"
    if ((${#sets[@]} > 0)); then printf 'set %s\n' "${sets[@]}"; fi
}

# Prints the process id, and succeeds, while the server runs.
running_pid() {
    local pid
    [[ -s $dir/pid ]] || return 1
    pid=$(<"$dir/pid")
    { tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -xF -- "-Dstrandline.instance=$dir" >/dev/null || return 1
    echo "$pid"
}

# A dead process whose parent has not asked for its end is a zombie; its ports and locks are free once its last thread is gone.
is_gone() {
    local threads=("/proc/$1/task/"*)
    [[ ! -e /proc/$1 ]] || { ((${#threads[@]} <= 1)) && has_state "$1" Z; }
}

has_state() { grep -q "^State:[[:space:]]*$2" "/proc/$1/status" 2>/dev/null; }

start_instance() {
    local pid command=()
    lock_instance
    if pid=$(running_pid); then
        settings_text | cmp -s - "$dir/settings" || fail "$kind runs in $dir with other settings: stop it first"
        say "$kind: runs already as process $pid"
        await_answer
        return
    fi
    must_be_free "$port"
    must_be_free "$second_port"
    settings_text >"$dir/settings"
    "${kind}_configure"
    "${kind}_command"
    [[ ! -e $dir/server.log ]] || mv "$dir/server.log" "$dir/server.log.1"

    # In a session of its own, so that an interrupt from the terminal does not reach the server.
    (cd "$dir" && exec setsid "${command[@]}" </dev/null >server.log 2>&1 9>&-) &
    pid=$!
    echo "$pid" >"$dir/pid"
    until running_pid >/dev/null || is_gone "$pid"; do sleep 0.05; done
    say "$kind: starting on 127.0.0.1:$port in $dir"
    await_answer || { signal_instance KILL 2>/dev/null || true; exit 1; }
}

# Waits until the server says that it has started and answers a request.
await_answer() {
    local begin=$SECONDS
    until grep -q "$started_line" "$dir/server.log" 2>/dev/null && "${kind}_answers"; do
        running_pid >/dev/null || give_up "$kind ended while it started"
        ((SECONDS - begin < start_timeout)) || give_up "$kind did not answer on 127.0.0.1:$port within $start_timeout s"
        sleep 0.2
    done
    say "$kind: answers on 127.0.0.1:$port after $((SECONDS - begin)) s"
}
