# An instance: one server with all that is its own in one directory.
#
#   settings           the ports and the --set of the last start: a start without options is a restart as it was
#   pid                of the process; believed only while that process names this directory on its command line
#   server.log         what the server printed, of all its starts
#   data, and the configuration, which is written anew at each start
#
# The functions here work on the global variables kind, dir, port, second_port and sets.

start_timeout=${SERVICES_START_TIMEOUT:-120}
stop_timeout=${SERVICES_STOP_TIMEOUT:-30}

# One command at a time may change an instance. The server must not inherit the lock: hence all the 9>&-.
lock_instance() {
    mkdir -p "$dir"
    exec 9>"$dir/lock"
    flock 9
}

load_settings() {
    local key value
    sets=() port='' second_port=''
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

# running_pid: prints the process id and succeeds while the server runs.
running_pid() {
    local pid
    [[ -e $dir/pid ]] || return 1
    pid=$(<"$dir/pid")
    tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF -- "-Dstrandline.instance=$dir" || return 1
    echo "$pid"
}

is_paused() { [[ $(ps -o state= -p "$1") == T ]]; }

start_instance() {
    local pid
    lock_instance
    if pid=$(running_pid); then
        settings_text | cmp -s - "$dir/settings" || fail "$kind runs in $dir with other settings; stop it first"
        say "$kind: runs already, process $pid"
        await_answer
        return
    fi
    fetch "$kind"
    free_or_fail "$port"
    free_or_fail "$second_port"
    settings_text >"$dir/settings"
    rm -f "$dir/pid"
    "${kind}_configure"

    local command
    "${kind}_command"
    [[ ! -e $dir/server.log ]] || mv "$dir/server.log" "$dir/server.log.1"
    # A session of its own: what interrupts this script, or the terminal, does not reach the server.
    (cd "$dir" && exec setsid "${command[@]}" <&- >server.log 2>&1 9>&-) &
    echo $! >"$dir/pid"
    say "$kind: starting on 127.0.0.1:$port in $dir"
    await_answer || { signal_instance KILL; exit 1; }
}
