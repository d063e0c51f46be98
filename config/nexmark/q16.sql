-- Nexmark, query 16: the same for each channel, with the minute of the last bid.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q16 (channel VARCHAR, day VARCHAR, minute VARCHAR,
    total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT,
    total_bidders BIGINT, rank1_bidders BIGINT, rank2_bidders BIGINT, rank3_bidders BIGINT,
    total_auctions BIGINT, rank1_auctions BIGINT, rank2_auctions BIGINT, rank3_auctions BIGINT,
    PRIMARY KEY (channel, day))
  STORED AS CQL LOCATION 'cassandra://nexmark/q16' OPTIONS ('sink.create' 'true');

INSERT INTO q16
SELECT channel, to_char(date_time, '%Y-%m-%d'), max(to_char(date_time, '%H:%M')), count(*),
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
FROM bid GROUP BY channel, to_char(date_time, '%Y-%m-%d');
