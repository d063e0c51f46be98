-- Nexmark, query 12: how many bids everyone made in every ten seconds of processing time.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid'
  OPTIONS ('watermark.column' '_processing_time');

CREATE EXTERNAL TABLE q12 (bidder BIGINT, bid_count BIGINT, start_time TIMESTAMP(3), end_time TIMESTAMP(3),
    PRIMARY KEY (bidder, start_time))
  STORED AS CQL LOCATION 'cassandra://nexmark/q12' OPTIONS ('sink.create' 'true', 'output.mode' 'append');

INSERT INTO q12
SELECT bidder, count(*), window.start, window.end FROM bid
GROUP BY bidder, window(_processing_time, '10 seconds');
