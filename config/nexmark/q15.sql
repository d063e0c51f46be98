-- Nexmark, query 15: bids, bidders and auctions of each day, by the order of magnitude of the price.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q15 (day VARCHAR, total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT,
    total_bidders BIGINT, rank1_bidders BIGINT, rank2_bidders BIGINT, rank3_bidders BIGINT,
    total_auctions BIGINT, rank1_auctions BIGINT, rank2_auctions BIGINT, rank3_auctions BIGINT,
    PRIMARY KEY (day))
  STORED AS CQL LOCATION 'cassandra://nexmark/q15' OPTIONS ('sink.create' 'true');

INSERT INTO q15
SELECT to_char(date_time, '%Y-%m-%d'), count(*),
  count(*) FILTER (WHERE price < 10000),
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000),
  count(*) FILTER (WHERE price >= 1000000),
  count(DISTINCT bidder),
  count(DISTINCT bidder) FILTER (WHERE price < 10000),
  count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000),
  count(DISTINCT bidder) FILTER (WHERE price >= 1000000),
  count(DISTINCT auction),
  count(DISTINCT auction) FILTER (WHERE price < 10000),
  count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000),
  count(DISTINCT auction) FILTER (WHERE price >= 1000000)
FROM bid GROUP BY to_char(date_time, '%Y-%m-%d');
