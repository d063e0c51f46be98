-- Nexmark, query 19: the ten highest bids of each auction. Those that drop out are removed.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q19 (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR, rank_number BIGINT, kafka_partition INT, kafka_offset BIGINT,
    PRIMARY KEY (auction, kafka_partition, kafka_offset))
  STORED AS CQL LOCATION 'cassandra://nexmark/q19' OPTIONS ('sink.create' 'true');

INSERT INTO q19
SELECT auction, bidder, price, channel, url, date_time, extra, place, _partition, _offset
FROM (SELECT auction, bidder, price, channel, url, date_time, extra, _partition, _offset,
             ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS place
      FROM bid)
WHERE place <= 10;
