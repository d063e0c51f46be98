# A class archive: the classes of a server as Java has them in memory after a start. With it the next starts cost half.
#
# It is made by a first start and stop of the server in a directory that is thrown away, and it only saves time: where it
# is missing, or is for another Java, the server starts as it would without.

archive_options() { if [[ -e $cache/$1/classes.jsa ]]; then echo "-XX:SharedArchiveFile=$cache/$1/classes.jsa"; fi; }

# make_archive KIND
make_archive() (
    kind=$1 port=$(some_free_port) sets=() join='' stop_timeout=120
    second_port=$((port + 1)) dir=$(mktemp -d "$cache/archive.XXXXXX")
    trap 'stop_instance KILL 2>/dev/null; rm -rf "$dir"' EXIT
    say "$kind: starting it once, so that its later starts are faster"
    extra_options=("-XX:ArchiveClassesAtExit=$dir/classes.jsa")
    start_instance
    stop_instance TERM
    mv "$dir/classes.jsa" "$cache/$kind/classes.jsa"
)

# Below the ports that systems give to clients, so that no connection takes it meanwhile.
some_free_port() {
    local port
    while
        port=$((20000 + RANDOM % 6000 * 2))
        is_open "$port" || is_open $((port + 1))
    do :; done
    echo "$port"
}
