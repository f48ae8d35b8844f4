SELECT date_trunc('day', time) AS day, topic, type, count(*) AS events
FROM {{ source('ropewalk', 'events') }}
GROUP BY ALL
