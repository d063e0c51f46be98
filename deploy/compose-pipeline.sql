-- What compose.yaml runs: the revenue of each item, shown in the log of the service.

CREATE EXTERNAL TABLE orders (item VARCHAR, amount DOUBLE, qty BIGINT)
  STORED AS JSON LOCATION 'kafka://orders';

CREATE EXTERNAL TABLE revenue (item VARCHAR, n BIGINT, total DOUBLE, PRIMARY KEY (item))
  STORED AS TABLE LOCATION 'console://';

INSERT INTO revenue
SELECT item, count(*), sum(amount * qty) FROM orders WHERE qty > 0 GROUP BY item;
