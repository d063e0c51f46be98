# The everyday commands.

# The whole job in one process, with embedded servers.
demo *args:
    cargo run --release -- demo {{args}}

# All tests, with a real Kafka and a real Cassandra.
test *args:
    tests/run {{args}}

# What must hold before a commit.
check:
    .ci/run

# A Kafka on 9092, a Cassandra on 9042 and a Jaeger on 4317 of this machine.
services verb="start":
    deploy/local/services {{verb}} all

# The simulation of the actors, as many seeds as wanted: just simulate 0..10000
simulate seeds="0..1000":
    SIMULATION_SEEDS={{seeds}} cargo test -p strandline-actors --test simulation -- --nocapture
