-- Nexmark, query 18: the last bid of everyone for each auction.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q18 (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, date_time TIMESTAMP(3),
    extra VARCHAR, PRIMARY KEY (bidder, auction))
  STORED AS CQL LOCATION 'cassandra://nexmark/q18' OPTIONS ('sink.create' 'true');

INSERT INTO q18
SELECT auction, bidder, price, channel, url, date_time, extra
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS place FROM bid)
WHERE place <= 1;
