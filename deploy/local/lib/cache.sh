# The cache: what the servers need to run, installed or downloaded once, outside the source tree.
#
# What a server needs is complete or absent: it is gathered in a directory of another name and then moved. Jars lie beside
# the pom that they were gathered from, which is the stamp: while it says the same, there is nothing to do.

cache=${SERVICES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/strandline}

# fetch KIND: installs what is missing and downloads or builds the server. Parallel calls wait for one another.
fetch() {
    local kind=$1
    if "${kind}_is_there"; then return; fi

    mkdir -p "$cache"
    (
        flock -n 8 || { say "waiting for another fetch"; flock 8; }
        if ! "${kind}_is_there"; then "${kind}_get"; fi
    ) 8>"$cache/fetch.lock"
}

jars_are_there() { have_java && have_jars "$1"; }

get_jars() {
    install_commands
    if ! have_jars "$1"; then
        download_jars "$1"
        make_archive "$1" || say "$1: that failed; it works all the same"
    fi
}

jars() { echo "$cache/$1/lib"; }

have_jars() { "$1_pom" | cmp -s - "$cache/$1/pom.xml"; }

download_jars() {
    local kind=$1 new="$cache/$1.new" log="$cache/$1.fetch.log" java
    java=$(realpath "$(java17)")
    say "$kind: downloading its jars into $cache/$kind"
    rm -rf "$new"
    mkdir -p "$new"
    "${kind}_pom" >"$new/pom.xml"
    JAVA_HOME=${java%/bin/java} mvn --batch-mode --no-transfer-progress -Dstyle.color=never -f "$new/pom.xml" \
        org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$new/lib" >"$log" 2>&1 8>&- \
        || { tail -n 20 "$log" >&2; fail "Maven could not download the jars of $kind; all of its output is in $log"; }
    rm -rf "${cache:?}/${kind:?}"
    mv "$new" "$cache/$kind"
    say "$kind: $(find "$cache/$kind/lib" -name '*.jar' | wc -l) jars are there"
}

# pom GROUP:ARTIFACT:VERSION...: a project that only has these dependencies.
pom() {
    local group artifact version
    cat <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>strandline</groupId>
  <artifactId>local-services</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
XML
    while IFS=: read -r group artifact version; do
        printf '    <dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n' \
            "$group" "$artifact" "$version"
    done < <(printf '%s\n' "$@")
    printf '  </dependencies>\n</project>\n'
}

# Prints the path of a Java 17, by the file that says its version: Cassandra runs on no newer one.
java17() {
    local java home
    for java in "${JAVA_HOME:-/nowhere}/bin/java" "$(command -v java)" /usr/lib/jvm/java-17-*/bin/java; do
        home=$(dirname "$(dirname "$(realpath -m "${java:-/nowhere}")")")
        if [[ -x $java ]] && grep -q '^JAVA_VERSION="17' "$home/release" 2>/dev/null; then
            echo "$java"
            return
        fi
    done
    return 1
}

have_java() { java17 >/dev/null; }

install_commands() {
    local packages=()
    have_java || packages+=(openjdk-17-jdk-headless)
    command -v mvn >/dev/null || packages+=(maven)
    if ((${#packages[@]} > 0)); then install_packages "${packages[@]}"; fi
}

install_packages() {
    local packages=("$@")
    command -v apt-get >/dev/null || fail "please install: ${packages[*]} (there is no apt-get to do it with)"
    local as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail "please install as root: ${packages[*]}"
        as_root=(sudo)
    fi
    say "installing ${packages[*]}"
    {
        "${as_root[@]}" apt-get update -qq &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
    } >&2 8>&- || fail "apt-get could not install ${packages[*]}"
}
