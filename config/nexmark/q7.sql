-- Nexmark, query 7: the highest bids of every ten seconds. Ties are kept.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid'
  OPTIONS ('watermark.column' 'date_time', 'watermark.delay' '4 seconds', 'watermark.close.after' '10 seconds');

CREATE EXTERNAL TABLE q7 (window_start TIMESTAMP(3), auction BIGINT, price BIGINT, bidder BIGINT, date_time TIMESTAMP(3), extra VARCHAR,
    kafka_partition INT, kafka_offset BIGINT, PRIMARY KEY (window_start, kafka_partition, kafka_offset))
  STORED AS CQL LOCATION 'cassandra://nexmark/q7' OPTIONS ('sink.create' 'true', 'output.mode' 'append');

INSERT INTO q7
SELECT start, auction, price, bidder, date_time, extra, _partition, _offset
FROM (SELECT window.start, auction, price, bidder, date_time, extra, _partition, _offset,
             RANK() OVER (PARTITION BY window(date_time, '10 seconds') ORDER BY price DESC) AS place
      FROM bid)
WHERE place = 1;
