-- Nexmark, query 2: the bids for some auctions.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q2 (auction BIGINT, price BIGINT, kafka_partition INT, kafka_offset BIGINT,
    PRIMARY KEY (auction, kafka_partition, kafka_offset))
  STORED AS CQL LOCATION 'cassandra://nexmark/q2' OPTIONS ('sink.create' 'true');

INSERT INTO q2
SELECT auction, price, _partition, _offset FROM bid WHERE auction % 123 = 0;
