-- Nexmark, query 11: how many bids everyone made in each of their sessions.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid'
  OPTIONS ('watermark.column' 'date_time', 'watermark.delay' '4 seconds', 'watermark.close.after' '10 seconds');

CREATE EXTERNAL TABLE q11 (bidder BIGINT, bid_count BIGINT, start_time TIMESTAMP(3), end_time TIMESTAMP(3),
    PRIMARY KEY (bidder, start_time))
  STORED AS CQL LOCATION 'cassandra://nexmark/q11' OPTIONS ('sink.create' 'true', 'output.mode' 'append');

INSERT INTO q11
SELECT bidder, count(*), session_window.start, session_window.end FROM bid
GROUP BY bidder, session_window(date_time, '10 seconds');
