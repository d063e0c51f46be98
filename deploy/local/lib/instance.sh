# An instance: one server with all that is its own in one directory.
#
#   settings           ports, --set and --join of the last start: a start without options is a restart as it was
#   pid                of the process; believed only while that process names this directory on its command line
#   server.log         what the server printed since its start; server.log.1 is from the start before
#   data               kept from start to start
#   and the configuration, which is written anew at each start
#
# The functions work on the global variables kind, dir, port, second_port, sets, join and extra_options (of Java).

start_timeout=${SERVICES_START_TIMEOUT:-120}
stop_timeout=${SERVICES_STOP_TIMEOUT:-30}

# One command at a time may change an instance. The server must not inherit the lock, hence 9>&- (and 8>&- for that of fetch).
lock_instance() {
    mkdir -p "$dir"
    exec 9>"$dir/lock"
    flock 9
}

unlock_instance() { exec 9>&-; }

load_settings() {
    local key value
    port='' second_port='' sets=() join=''
    [[ -e $dir/settings ]] || return 0
    while IFS=' ' read -r key value; do
        case $key in
            kind) [[ $value == "$kind" ]] || fail "$dir holds a $value, not a $kind" ;;
            port) port=$value ;;
            second-port) second_port=$value ;;
            set) sets+=("$value") ;;
            join) join=$value ;;
        esac
    done <"$dir/settings"
}

settings_text() {
    printf 'kind %s\nport %s\nsecond-port %s\n' "$kind" "$port" "$second_port"
    if ((${#sets[@]} > 0)); then printf 'set %s\n' "${sets[@]}"; fi
    if [[ -n $join ]]; then printf 'join %s\n' "$join"; fi
}

# Prints the process id, and succeeds, while the server runs.
running_pid() {
    local pid
    [[ -s $dir/pid ]] || return 1
    pid=$(<"$dir/pid")
    { tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -xF -- "$("${kind}_mark")" >/dev/null || return 1
    echo "$pid"
}

# A dead process whose parent has not asked for its end is a zombie; its ports and locks are free once its last thread is gone.
is_gone() {
    local threads=("/proc/$1/task/"*)
    [[ ! -e /proc/$1 ]] || { ((${#threads[@]} <= 1)) && has_state "$1" Z; }
}

has_state() { grep -q "^State:[[:space:]]*$2" "/proc/$1/status" 2>/dev/null; }

# What marks the processes of Java.
java_mark() { echo "-Dstrandline.instance=$dir"; }

start_instance() {
    local pid command=()
    lock_instance
    if pid=$(running_pid); then
        settings_text | cmp -s - "$dir/settings" || fail "$kind runs in $dir with other settings: stop it first"
        say "$kind: runs already as process $pid"
        unlock_instance
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
    (cd "$dir" && exec setsid "${command[@]}" </dev/null >server.log 2>&1 8>&- 9>&-) &
    pid=$!
    disown # or bash would report its end
    echo "$pid" >"$dir/pid"
    until running_pid >/dev/null || is_gone "$pid"; do sleep 0.05; done
    say "$kind: starting on 127.0.0.1:$port in $dir"
    # From here on it may be stopped or killed, also while it starts.
    unlock_instance
    await_answer || { stop_instance KILL; exit 1; }
}

# Waits until the server has said that it started, and answers a request.
await_answer() {
    local begin=$SECONDS
    until "${kind}_answers"; do
        if ! running_pid >/dev/null; then
            explain_failure "$kind ended before it answered"
            return 1
        fi
        if ((SECONDS - begin >= start_timeout)); then
            explain_failure "$kind did not answer on 127.0.0.1:$port within $start_timeout s"
            return 1
        fi
        sleep 0.2
    done
    say "$kind: answers on 127.0.0.1:$port after $((SECONDS - begin)) s"
}

explain_failure() {
    if [[ -e $dir/server.log ]]; then tail -n 20 "$dir/server.log" | cut -c 1-300 >&2; fi
    say "error: $1; its log is $dir/server.log"
}

has_said() { grep -q "$1" "$dir/server.log" 2>/dev/null; }

# stop_instance SIGNAL: ends the server and waits until it is gone. A server that TERM does not end in time is killed.
stop_instance() {
    local signal=$1 pid begin=$SECONDS
    lock_instance
    if ! pid=$(running_pid); then
        say "$kind: does not run in $dir"
        return
    fi
    kill -s "$signal" "$pid"
    kill -s CONT "$pid"
    until is_gone "$pid"; do
        if [[ $signal != KILL ]] && ((SECONDS - begin >= stop_timeout)); then
            say "$kind: did not end within $stop_timeout s and is killed"
            signal=KILL
            kill -s KILL "$pid"
        fi
        sleep 0.05
    done
    rm -f "$dir/pid"
    say "$kind: ended"
}

signal_instance() {
    local pid
    pid=$(running_pid) || fail "$kind does not run in $dir"
    kill -s "$1" "$pid"
}

# One line about the instance; fails while it does not run.
show_instance() {
    local pid
    if ! pid=$(running_pid); then
        echo "$kind: stopped ($dir)"
        return 1
    elif has_state "$pid" T; then
        echo "$kind: paused, process $pid, 127.0.0.1:$port ($dir)"
    elif "${kind}_answers"; then
        echo "$kind: answers, process $pid, 127.0.0.1:$port ($dir)"
    else
        echo "$kind: runs but does not answer, process $pid, 127.0.0.1:$port ($dir)"
    fi
}

is_open() { timeout 2 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1"' - "$1" 2>/dev/null; }

must_be_free() { ! is_open "$1" || fail "$kind cannot start: something else listens on 127.0.0.1:$1"; }

# ask PORT REQUEST N: sends the bytes that printf makes of REQUEST and prints the first N of the answer in hexadecimal.
ask() {
    # shellcheck disable=SC2016
    timeout 2 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1"; printf "$2" >&3; head -c "$3" <&3 | od -An -v -tx1 | tr -d " \n"' \
        - "$@" 2>/dev/null || true
}
