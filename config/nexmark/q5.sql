-- Nexmark, query 5: the auctions with the most bids of the last ten seconds, every two seconds. Ties are kept.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid'
  OPTIONS ('watermark.column' 'date_time', 'watermark.delay' '4 seconds', 'watermark.close.after' '10 seconds');

CREATE EXTERNAL TABLE q5 (window_start TIMESTAMP(3), window_end TIMESTAMP(3), auction BIGINT, num BIGINT,
    PRIMARY KEY (window_start, auction))
  STORED AS CQL LOCATION 'cassandra://nexmark/q5' OPTIONS ('sink.create' 'true', 'output.mode' 'append');

INSERT INTO q5
SELECT start, "end", auction, num
FROM (SELECT *, RANK() OVER (PARTITION BY start ORDER BY num DESC) AS place
      FROM (SELECT window.start, window.end, auction, count(*) AS num FROM bid
            GROUP BY window(date_time, '10 seconds', '2 seconds'), auction))
WHERE place = 1;
