-- Nexmark, query 22: the folders of the address.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q22 (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, dir1 VARCHAR, dir2 VARCHAR, dir3 VARCHAR,
    kafka_partition INT, kafka_offset BIGINT, PRIMARY KEY (auction, kafka_partition, kafka_offset))
  STORED AS CQL LOCATION 'cassandra://nexmark/q22' OPTIONS ('sink.create' 'true');

INSERT INTO q22
SELECT auction, bidder, price, channel, split_part(url, '/', 4), split_part(url, '/', 5), split_part(url, '/', 6),
  _partition, _offset
FROM bid;
