-- Nexmark, query 21: the number of the channel, known by its name or taken from the address.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q21 (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, channel_id VARCHAR,
    kafka_partition INT, kafka_offset BIGINT, PRIMARY KEY (auction, kafka_partition, kafka_offset))
  STORED AS CQL LOCATION 'cassandra://nexmark/q21' OPTIONS ('sink.create' 'true');

INSERT INTO q21
SELECT auction, bidder, price, channel,
  CASE lower(channel)
    WHEN 'apple' THEN '0'
    WHEN 'google' THEN '1'
    WHEN 'facebook' THEN '2'
    WHEN 'baidu' THEN '3'
    ELSE found
  END,
  _partition, _offset
FROM (SELECT auction, bidder, price, channel, regexp_match(url, '(&|^)channel_id=([^&]*)')[2] AS found,
             _partition, _offset
      FROM bid)
WHERE found IS NOT NULL OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu');
