CREATE EXTERNAL TABLE orders (item VARCHAR, amount DECIMAL(12,2), qty BIGINT NOT NULL, ts TIMESTAMP, tags VARCHAR[],
  buyer STRUCT<name VARCHAR, age INT>) STORED AS JSON LOCATION 'kafka://orders'
  OPTIONS ('starting.offsets' '{"0": 5}', 'rule.amount' 'amount >= 0 AND _key IS NOT NULL', 'json.timestamp.unit' 'millis');
CREATE EXTERNAL TABLE revenue (item VARCHAR, n BIGINT, total DECIMAL(22,2), PRIMARY KEY (item)) STORED AS CQL
  LOCATION 'cassandra://shop/revenue' OPTIONS ('sink.create' 'true');
INSERT INTO revenue SELECT item, count(*), sum(amount) FROM orders WHERE qty > 0 GROUP BY item HAVING count(*) > 1;
